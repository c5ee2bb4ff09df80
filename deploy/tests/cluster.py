"""A StatefulSet without a cluster: its containers as processes on loopback, with their files and their probes."""

import base64
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from support import BINARY, CHART, Handler, check, free_port, run, running, serving, wait_for

RELEASE, NAMESPACE = "test", "indexing"
# Versions of Kubernetes that objects must fit: the oldest that the chart admits, and the newest known one.
KUBERNETES = ("1.25", "1.37")
PASSWORD = "a-password-of-the-store"


def template(*options: object, release: str = RELEASE, namespace: str = NAMESPACE) -> subprocess.CompletedProcess:
    """`helm template` with these options."""
    return run("helm", "template", release, CHART, "--namespace", namespace, "--kube-version", KUBERNETES[0], *options)


def rendered(values: Path, *options: object, **names: str) -> list[dict[str, Any]]:
    """The objects that the chart renders for a value file, further options, and names of the release."""
    result = template("--values", values, *options, **names)
    assert result.returncode == 0, result.stderr
    return [one for one in yaml.safe_load_all(result.stdout) if one is not None]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only object of a kind."""
    (one,) = [one for one in objects if one["kind"] == kind]
    return one


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The container of the StatefulSet."""
    (one,) = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    return one


@contextmanager
def kubernetes() -> Iterator[str]:
    """The address of an API server of a cluster without pods."""

    class Pods(Handler):
        def do_GET(self) -> None:
            if "watch=" in self.path:
                self.send_response(200)
                self.end_headers()
                stopping.wait()
                return
            self.answer(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})

    with serving(Pods) as (address, stopping):
        yield address


@contextmanager
def name_server() -> Iterator[str]:
    """A name server that answers each question with "no such name"."""
    stopping = threading.Event()
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    server.settimeout(0.1)

    def answer() -> None:
        while not stopping.is_set():
            try:
                question, client = server.recvfrom(4096)
            except TimeoutError:
                continue
            # The question's id, flags of an answer with code 3, one question, no records.
            end = question.index(b"\0", 12) + 5
            server.sendto(question[:2] + b"\x81\x83\0\1\0\0\0\0\0\0" + question[12:end], client)

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        stopping.set()
        answering.join()
        server.close()


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Secrets:
    """The contents of every Secret that a value file may name: certificates, tokens, a password, keys."""

    def __init__(self, folder: Path, scopes: str = "query,admin") -> None:
        self.folder = folder
        folder.mkdir()
        names = "subjectAltName=DNS:localhost,DNS:indexer.example,IP:127.0.0.1"
        new = ("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-batch")
        check(*new, "-x509", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt", "-days", 2, cwd=folder)
        check(*new, "-subj", "/CN=indexer", "-keyout", "tls.key", "-out", "tls.csr", cwd=folder)
        (folder / "names").write_text(names)
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", 1)
        check("openssl", "x509", "-req", "-in", "tls.csr", "-out", "tls.crt", *signed, cwd=folder)
        made = run(BINARY, "token", "replica", "--scope", scopes)
        assert made.returncode == 0, made.stderr
        (folder / "tokens.toml").write_text(made.stdout)
        (token,) = re.findall(r"\S{32,}", made.stderr)
        (folder / "token").write_text(token)
        (folder / "password").write_text(PASSWORD)
        self.token = token
        check(BINARY, "curve-key", "indexer", cwd=folder)
        engine = check(BINARY, "curve-key", "engine", cwd=folder).split()[0]
        (folder / "clients").write_text(f"{engine}\n")
        (folder / "server-keys").write_text(f"{engine} *\n")
        check("openssl", "genrsa", "-out", "issuer.key", 2048, cwd=folder)
        modulus = check("openssl", "rsa", "-in", "issuer.key", "-noout", "-modulus", cwd=folder).strip().split("=")[1]
        key = {"kty": "RSA", "kid": "1", "alg": "RS256", "n": _base64url(bytes.fromhex(modulus)), "e": "AQAB"}
        (folder / "jwks.json").write_text(json.dumps({"keys": [key]}))

    def use_jwt(self, claims: dict[str, Any]) -> None:
        """Replaces the token by a JWT of the issuer with these claims."""
        parts = [{"alg": "RS256", "kid": "1"}, {"sub": "replica", "exp": int(time.time()) + 3600, **claims}]
        signed = ".".join(_base64url(json.dumps(part).encode()) for part in parts)
        (self.folder / "signed").write_text(signed)
        check("openssl", "dgst", "-sha256", "-sign", "issuer.key", "-out", "signature", "signed", cwd=self.folder)
        self.token = f"{signed}.{_base64url((self.folder / 'signature').read_bytes())}"
        (self.folder / "token").write_text(self.token)

    def client(self) -> ssl.SSLContext:
        """Settings of a client with a certificate."""
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        context.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        return context


class Replica:
    """One pod of the StatefulSet."""

    def __init__(self, spec: dict[str, Any], ports: dict[str, int], secrets: Secrets, log: Path) -> None:
        self.spec, self.ports, self.secrets, self.log = spec, ports, secrets, log

    def get(self, path: str, token: str | None = None) -> tuple[int, Any]:
        """The status of an answer, and its JSON."""
        if any(argument.startswith("--tls-cert=") for argument in self.spec["args"]):
            made = http.client.HTTPSConnection(
                "127.0.0.1", self.ports["http"], timeout=10, context=self.secrets.client()
            )
        else:
            made = http.client.HTTPConnection("127.0.0.1", self.ports["http"], timeout=10)
        try:
            made.request("GET", path, headers={"authorization": f"Bearer {token}"} if token else {})
            answer = made.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            made.close()

    def passes(self, probe: str) -> bool:
        """Whether a probe succeeds, made as the kubelet makes it: without a token, a certificate or a check of one."""
        at = self.spec[probe]
        try:
            if "tcpSocket" in at:
                socket.create_connection(("127.0.0.1", self.ports[at["tcpSocket"]["port"]]), 10).close()
                return True
            get = at["httpGet"]
            if get["scheme"] == "HTTPS":
                unchecked = ssl._create_unverified_context()
                made = http.client.HTTPSConnection("127.0.0.1", self.ports[get["port"]], timeout=10, context=unchecked)
            else:
                made = http.client.HTTPConnection("127.0.0.1", self.ports[get["port"]], timeout=10)
            made.request("GET", get["path"])
            return made.getresponse().status == 200
        except OSError:
            return False


@contextmanager
def statefulset(objects: list[dict[str, Any]], folder: Path) -> Iterator[list[Replica]]:
    """The replicas of the StatefulSet, started one after the other with the rendered arguments.

    Only what a machine without a cluster cannot have is changed: ports, host names of replicas and of the store,
    folders of volumes, the cluster's API server and its name server.
    """
    with ExitStack() as stack:
        spec = container(objects)
        wanted = of_kind(objects, "StatefulSet")
        secrets = Secrets(folder / "secrets")
        options = dict(argument.partition("=")[::2] for argument in spec["args"])
        if "--jwt-keys" in options and "--token-file" not in options:
            claims = {"iss": options["--jwt-issuer"], "aud": options["--jwt-audience"]}
            claims[options["--jwt-scopes-claim"]] = ["query", "admin"]
            claims[options["--jwt-tenants-claim"]] = "*"
            secrets.use_jwt(claims)
        api, names = stack.enter_context(kubernetes()), stack.enter_context(name_server())
        replicas = [
            Replica(spec, {port["name"]: free_port() for port in spec["ports"]}, secrets, folder / f"{number}.log")
            for number in range(wanted["spec"]["replicas"])
        ]
        store = _store(stack, spec, secrets, folder)
        for number, replica in enumerate(replicas):
            args = [
                _local(argument, wanted, replica, replicas, folder / str(number), store) for argument in spec["args"]
            ]
            _volumes(objects, spec, secrets, folder / str(number))
            if any(argument.startswith("--discovery-kubernetes=") for argument in args):
                # A pod's own namespace is read from its service account.
                args.append(f"--discovery-kubernetes-api={api}")
                if not any(argument.startswith("--discovery-kubernetes-namespace=") for argument in args):
                    args.append(f"--discovery-kubernetes-namespace={NAMESPACE}")
            if any(argument.startswith("--discovery-dns=") for argument in args):
                args.append(f"--discovery-dns-server={names}")
            env = {variable["name"]: variable["value"] for variable in spec["env"]}
            stack.enter_context(running(replica.log, BINARY, *args, env={"PATH": os.environ["PATH"], **env}))
            wait_for(f"readiness ({replica.log})", lambda replica=replica: replica.passes("readinessProbe"))
            wait_for(f"readiness ({replica.log})", lambda replica=replica: replica.get("/ready")[0] == 200)
        yield replicas


def _local(
    argument: str, wanted: dict[str, Any], replica: Replica, replicas: list[Replica], folder: Path, store: str
) -> str:
    name, service = wanted["metadata"]["name"], wanted["spec"]["serviceName"]
    for port in replica.spec["ports"]:
        number, option = port["containerPort"], {"http": "--port", "grpc": "--grpc-port"}.get(port["name"])
        if argument == f"{option}={number}":
            return f"{option}={replica.ports[port['name']]}"
        argument = argument.replace(f"tcp://0.0.0.0:{number}", f"tcp://0.0.0.0:{replica.ports[port['name']]}")
    if argument.startswith("--peers="):
        for number, peer in enumerate(replicas):
            (port,) = [port["containerPort"] for port in replica.spec["ports"] if port["name"] == "http"]
            host = f"{name}-{number}.{service}.{NAMESPACE}.svc:{port}"
            assert host in argument, f"{argument} does not name {host}"
            argument = argument.replace(host, f"127.0.0.1:{peer.ports['http']}")
    if argument.startswith("--redis="):
        return f"--redis={store}"
    return argument.replace("=/etc/", f"={folder}/etc/").replace("=/var/", f"={folder}/var/")


def _volumes(objects: list[dict[str, Any]], spec: dict[str, Any], secrets: Secrets, folder: Path) -> None:
    pod = of_kind(objects, "StatefulSet")["spec"]
    sources = {volume["name"]: volume for volume in pod["template"]["spec"].get("volumes", [])}
    claims = {claim["metadata"]["name"]: claim for claim in pod.get("volumeClaimTemplates", [])}
    for mount in spec.get("volumeMounts", []):
        at = folder / mount["mountPath"].lstrip("/")
        at.mkdir(parents=True)
        source = sources.get(mount["name"], {}) if mount["name"] not in claims else {}
        rendered_maps = {one["metadata"]["name"]: one for one in objects if one["kind"] == "ConfigMap"}
        config = rendered_maps.get(source["configMap"]["name"]) if "configMap" in source else None
        if "secret" in source or ("configMap" in source and config is None):
            for file in secrets.folder.iterdir():
                (at / file.name).write_bytes(file.read_bytes())
        if config is not None:
            for file, text in config["data"].items():
                (at / file).write_text(text)


def _store(stack: ExitStack, spec: dict[str, Any], secrets: Secrets, folder: Path) -> str:
    if not any(argument.startswith("--redis=") for argument in spec["args"]):
        return ""
    (user,) = [argument.split("=")[1] for argument in spec["args"] if argument.startswith("--redis-user=")]
    port = free_port()
    settings = {
        "port": 0,
        "tls-port": port,
        "tls-cert-file": secrets.folder / "tls.crt",
        "tls-key-file": secrets.folder / "tls.key",
        "tls-ca-cert-file": secrets.folder / "ca.crt",
        "tls-auth-clients": "no",
        "save": '""',
        "user": f"{user} on >{PASSWORD} ~* &* +@all",
    }
    (folder / "store.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    stack.enter_context(running(folder / "store.log", "redis-server", folder / "store.conf"))
    wait_for("the store", lambda: "Ready to accept" in (folder / "store.log").read_text())
    return f"rediss://localhost:{port}"
