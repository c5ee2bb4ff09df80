"""The Helm chart: what it renders, what it refuses, and whether the service runs with it."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from api_server import api_server
from cluster import KUBERNETES, NAMESPACE, RELEASE, container, of_kind, rendered, statefulset, template
from support import BINARY, CHART, ROOT, VALUES, check, run, serve_options

REFUSED = [
    ("replicas=0", "replicas"),
    ("replica=2", "replica is not allowed"),
    ("engines.blocksize=16", "blocksize is not allowed"),
    ("engines.blockSize=0", "engines.blockSize"),
    ("engines.networks={10.0.0.0}", "engines.networks.0"),
    ("engines.networks={10.0.0.0/99}", "engines.networks.0"),
    ("engines.networks={fd00::/129}", "engines.networks.0"),
    ("discovery.dns={vllm.svc:99999}", "discovery.dns.0"),
    ("discovery.dns={_kv._tcp.vllm.svc:5557}", "discovery.dns.0"),
    ("discovery.dataParallelSize=65536", "discovery.dataParallelSize"),
    ("http.port=70000", "http.port"),
    ("threads=257", "threads"),
    ("memoryMax=1.5GiB", "memoryMax"),
    ("log=inof", "log: Does not match pattern"),
    (r"log=info\,flash_indexer", "log: Does not match pattern"),
    ("log=flash_indexer_server=verbose", "log: Does not match pattern"),
    ("logFormat=xml", "logFormat"),
    ("state.size=ten", "state.size"),
    ("redis.url=http://valkey", "redis.url"),
    ("redis.url=redis+sentinel://c:6379", "redis.url"),
    ("redis.namespace=a{b}", "redis.namespace"),
    ("otlp.endpoint=collector:4318", "otlp.endpoint"),
    ("otlp.sampleRatio=2", "otlp.sampleRatio"),
    ("extraArgs={-v}", "extraArgs.0"),
    ("extraArgs={--decoders 4}", "extraArgs.0"),
    ("extraArgs={--port=9}", "extraArgs has --port, which the chart sets"),
    ("resources.claims[0].name=gpu", "claims is not allowed"),
    ("fullnameOverride=my.indexer", "fullnameOverride"),
    ("nameOverride=my.indexer", "set fullnameOverride"),
    ("discovery.engines[0].instance_id=1", "endpoint is required"),
    ("discovery.engines[0].instance_id=1,discovery.engines[0].endpoint=ipc:///x", "discovery.engines.0.endpoint"),
    ("access.insecure=false", "set access.tokenSecret, access.jwt, tls.clientAuth or access.insecure"),
    ("access.insecure=false,tls.clientAuth=true", "set tls.secret"),
    ("access.tokenSecret=t", "set peers.tokenSecret"),
    ("access.jwt.keysSecret=k", "set access.jwt.issuer and access.jwt.audience"),
    ("access.jwt.keysSecret=k,access.jwt.keysConfigMap=k", "set access.jwt.keysSecret or access.jwt.keysConfigMap"),
    ("access.jwt.issuer=i", "set access.jwt.keysSecret or access.jwt.keysConfigMap"),
    ("access.jwt.tenantsClaim=t", "set access.jwt.keysSecret or access.jwt.keysConfigMap"),
    ("access.jwt.keys=k", "keys is not allowed"),
    ("access.jwt.algorithms={RS 256}", "access.jwt.algorithms.0"),
    ("access.jwt.keysSecret=k,access.jwt.issuer=i,access.jwt.audience=a", "set peers.tokenSecret"),
    (
        "access.jwt.keysSecret=k,access.jwt.issuer=i,access.jwt.audience=a,peers.enabled=false,serviceMonitor.enabled=true",
        "set serviceMonitor.tokenSecret",
    ),
    ("access.tokenSecret=t,peers.enabled=false,serviceMonitor.enabled=true", "set serviceMonitor.tokenSecret"),
    ("tls.secret=t,serviceMonitor.enabled=true", "set serviceMonitor.tlsServerName"),
    (
        "tls.secret=t,tls.clientAuth=true,serviceMonitor.enabled=true,serviceMonitor.tlsServerName=n",
        "set serviceMonitor.tlsSecret",
    ),
    ("listenEvents.enabled=true", "set replicas=1"),
    ("access.insecure=false,tls.secret=s,tls.clientAuth=true,replicas=1,listenEvents.enabled=true", "set curve"),
    ("curve.keySecret=Key", "curve.keySecret"),
    ("curve.serverKeysSecret=k", "set curve.keySecret"),
    ("curve.keySecret=k", "set curve.serverKeysSecret or curve.clientsSecret"),
    ("curve.keySecret=k,curve.clientsSecret=c", "set listenEvents.enabled"),
    ("curve.keySecret=k,curve.serverKeysSecret=s,replicas=1,listenEvents.enabled=true", "set curve.clientsSecret"),
    ("discovery.kubernetes.selector=app=vllm", "set engines.blockSize"),
    ("grpc.enabled=true,grpc.port=8090", "set http.port, grpc.port or listenEvents.port"),
    ("replicas=1,listenEvents.enabled=true,listenEvents.port=8090", "set http.port, grpc.port or listenEvents.port"),
    (
        "replicas=1,listenEvents.enabled=true,grpc.enabled=true,grpc.port=5557",
        "set http.port, grpc.port or listenEvents.port",
    ),
    ("tokenizers.promptTextBytes=64MiB", "set tokenizers.volume"),
    ("tokenizers.promptTextBytes=64MiB,extraArgs={--tokenizer-threads=4}", "set tokenizers.volume"),
]

# Values next to refused ones.
ADMITTED = [
    "threads=256,discovery.dataParallelSize=65535",
    "engines.networks={10.0.0.0/32,fd00::/128,::/0}",
    "engines.blockSize=16,discovery.dns={vllm.svc:65535,_kv._tcp.vllm.svc},extraArgs={--discovery-dns=sglang.svc}",
    "redis.url=valkeys+sentinel://a:26379\\,b/master/1,redis.namespace=fleet-1:a_b.c",
    "tokenizers.promptTextBytes=64MiB,extraArgs={--tokenizer=org/model=/models/tokenizer.json}",
    "grpc.port=8090,listenEvents.port=8090",
]
MINIMAL = next(path for path in VALUES if path.stem == "minimal")


@pytest.fixture(params=VALUES, ids=lambda path: path.stem)
def values(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    with api_server(KUBERNETES[0]) as address:
        yield address


def applied(api: str, home: Path, objects: list[dict[str, Any]]) -> subprocess.CompletedProcess:
    """`kubectl apply --dry-run=client` of objects; kubectl caches what the server offers in `home`."""
    command = ("kubectl", "apply", "--dry-run=client", "--server", api, "--filename", "-")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    return run(*command, input=yaml.safe_dump_all(objects), env=environment)


@pytest.mark.parametrize("settings, error", REFUSED, ids=[settings for settings, _ in REFUSED])
def test_wrong_values_are_refused(settings: str, error: str) -> None:
    base = ("--set", "access.insecure=true")
    assert template(*base).returncode == 0
    result = template(*base, "--set", settings)
    assert result.returncode != 0 and error in result.stderr, result.stderr


@pytest.mark.parametrize("settings", ADMITTED)
def test_admitted_values_are_those_of_the_program(settings: str) -> None:
    check(BINARY, "config", "check", *container(rendered(MINIMAL, "--set", settings))["args"][1:])


@pytest.mark.parametrize("release", ["a.b", "123"])
def test_a_name_that_no_service_has_is_refused(release: str) -> None:
    result = template("--values", MINIMAL, release=release)
    assert result.returncode != 0 and "set fullnameOverride" in result.stderr, result.stderr
    rendered(MINIMAL, "--set", "fullnameOverride=indexer", release=release)


def test_extra_arguments_repeat_what_the_program_lets_them_repeat() -> None:
    source = (CHART / "templates/_helpers.tpl").read_text()
    (lists,) = re.findall(r"\$lists := list (.*) -", source)
    rendered_ones = {
        argument.split("=")[0]: argument for path in VALUES for argument in container(rendered(path))["args"][1:]
    }
    repeated = {
        name
        for name, argument in rendered_ones.items()
        if "cannot be used multiple times" not in run(BINARY, "config", "check", argument, argument).stderr
    }
    assert set(re.findall(r'"(.*?)"', lists)) == repeated


def test_lint_has_no_complaints(values: Path) -> None:
    linted = run("helm", "lint", "--strict", CHART, "--values", values)
    assert linted.returncode == 0, linted.stdout
    assert "[WARNING]" not in linted.stdout and "[ERROR]" not in linted.stdout


def test_what_the_documentation_shows_renders(tmp_path: Path) -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        (tmp_path / "values.yaml").write_text(block)
        objects = rendered(tmp_path / "values.yaml")
        assert of_kind(objects, "StatefulSet")["spec"]["replicas"] == 2
    (command,) = re.findall(r"^(helm template .*)$", page, re.MULTILINE)
    check(*command.split(), "--kube-version", KUBERNETES[0], cwd=ROOT)
    for path in re.findall(r"\bdeploy/[\w./-]+\w", page):
        assert (ROOT / path).exists(), path


def test_every_value_has_a_schema_and_a_default() -> None:
    def keys(values: Any, schema: dict[str, Any], path: str) -> None:
        assert schema.get("additionalProperties") is False, f"{path} admits unknown keys"
        assert set(values) == set(schema["properties"]) - {"global"}, path
        for key, value in values.items():
            if "properties" in schema["properties"][key] and key != "resources":
                keys(value, schema["properties"][key], f"{path}.{key}")

    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    keys(defaults, json.loads((CHART / "values.schema.json").read_text()), "values")


def assert_valid(objects: list[dict[str, Any]]) -> None:
    """Asserts that objects fit the schemas of Kubernetes and of the Prometheus Operator."""
    for one in objects:
        if one["apiVersion"].startswith("monitoring.coreos.com/"):
            at = f"{os.environ['NODE_PATH']}/@kubernetes-models/prometheus-operator/{one['apiVersion']}/index.js"
            code = f"new (await import({at!r})).{one['kind']}(JSON.parse(process.argv[1])).validate()"
            check("node", "--input-type=module", "--eval", code, json.dumps(one))
            continue
        for version in KUBERNETES:
            kubernetes_validate.validate(one, version, strict=True)


def test_objects_are_valid(values: Path) -> None:
    objects = rendered(values)
    assert_valid(objects)
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    assert len(set(names)) == len(names), "two objects have one name"


@pytest.mark.parametrize(
    "others",
    [
        {"access": {"jwt": {"keysSecret": "1"}}, "peers": {"tokenSecret": "1"}},
        {"replicas": 1, "access": {"jwt": {"keysConfigMap": "1"}}, "listenEvents": {"enabled": True}},
    ],
    ids=["replicas", "connecting-engines"],
)
def test_strings_that_look_like_other_types_stay_strings(others: dict[str, Any], tmp_path: Path) -> None:
    jwt = {**others["access"]["jwt"], "issuer": "1", "audience": "1"}
    connects = "listenEvents" in others
    values = {
        **others,
        "nameOverride": "1",
        "fullnameOverride": "true",
        "engines": {"blockSize": 16},
        "discovery": {
            "kubernetes": {"selector": "1", "namespace": "456"},
            "engines": [{"instance_id": 1, "endpoint": "tcp://a:1"}],
        },
        "access": {"tokenSecret": "1", "jwt": jwt},
        "tls": {"secret": "1", "clientAuth": True},
        "curve": {"keySecret": "1", "serverKeysSecret": "1", "clientsSecret": "1" if connects else ""},
        "state": {"size": "10", "storageClassName": "1"},
        "redis": {"url": "redis://a", "passwordSecret": "1", "caSecret": "1"},
        "otlp": {"endpoint": "http://a", "caSecret": "1"},
        "serviceAccount": {"name": "1"},
        "networkPolicy": {"enabled": True},
        "serviceMonitor": {"enabled": True, "tokenSecret": "1", "tlsServerName": "*.x.svc", "tlsSecret": "1"},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
        "priorityClassName": "1",
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    assert_valid(rendered(tmp_path / "values.yaml", release="123", namespace="789"))


def test_an_empty_storage_class_is_rendered() -> None:
    for settings, rest in [("state.storageClassName=", {"storageClassName": ""}), ("state.storageClassName=null", {})]:
        objects = rendered(MINIMAL, "--set", f"state.enabled=true,{settings}")
        (claim,) = of_kind(objects, "StatefulSet")["spec"]["volumeClaimTemplates"]
        expected = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}, **rest}
        assert claim["spec"] == expected


def test_alerts_select_the_job_of_the_service_monitor() -> None:
    settings = "nameOverride=kv,serviceMonitor.enabled=true,prometheusRule.enabled=true"
    objects = rendered(MINIMAL, "--set", settings)
    label = of_kind(objects, "ServiceMonitor")["spec"]["jobLabel"]
    (scraped,) = [one for one in objects if one["metadata"]["name"].endswith("-peers")]
    rules = json.dumps(of_kind(objects, "PrometheusRule"))
    jobs = set(re.findall(r'(?:job=\\"| the job )([\w-]+)', rules))
    assert jobs == {"kv"} == {scraped["metadata"]["labels"][label]}


def test_kubectl_would_create_every_object(values: Path, api: str, tmp_path: Path) -> None:
    objects = rendered(values)
    result = applied(api, tmp_path, objects)
    assert result.returncode == 0, result.stderr
    groups = [one["apiVersion"].rpartition("/")[0] for one in objects]
    expected = [
        f"{one['kind'].lower()}{group and '.'}{group}/{one['metadata']['name']} created (dry run)"
        for one, group in zip(objects, groups, strict=True)
    ]
    assert result.stdout.splitlines() == expected


def test_kubectl_refuses_objects_that_the_server_does_not_know(api: str, tmp_path: Path) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "one"}, "spec": {"ports": [{"port": 80}]}}
    assert applied(api, tmp_path, [service]).returncode == 0
    for wrong, error in [
        ({"kind": "Servise"}, 'no matches for kind "Servise" in version "v1"'),
        ({"apiVersion": "v2"}, 'no matches for kind "Service" in version "v2"'),
        ({"spec": {"port": 80}}, 'unknown field "port"'),
        ({"spec": {"ports": [{"name": "http"}]}}, 'missing required field "port"'),
        ({"spec": {"ports": 80}}, "invalid type for io.k8s.api.core.v1.ServiceSpec.ports"),
    ]:
        result = applied(api, tmp_path, [service | wrong])
        assert result.returncode != 0 and error in result.stderr, result.stderr
        assert "dry run" not in result.stdout


def test_names_of_ports_labels_and_roles_lead_somewhere(values: Path) -> None:
    objects = rendered(values)
    pods = of_kind(objects, "StatefulSet")
    labels = pods["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"] for port in container(objects)["ports"]}
    services = {one["metadata"]["name"]: one for one in objects if one["kind"] == "Service"}
    assert services[pods["spec"]["serviceName"]]["spec"]["clusterIP"] == "None"
    selectors = [pods["spec"]["selector"]["matchLabels"]]
    selectors += [service["spec"]["selector"] for service in services.values()]
    for one in objects:
        if one["kind"] == "PodDisruptionBudget":
            selectors.append(one["spec"]["selector"]["matchLabels"])
        if one["kind"] == "NetworkPolicy":
            selectors.append(one["spec"]["podSelector"]["matchLabels"])
            used = {port["port"] for rule in one["spec"]["ingress"] for port in rule["ports"]}
            assert used <= ports
        if one["kind"] == "ServiceMonitor":
            wanted = one["spec"]["selector"]["matchLabels"].items()
            (scraped,) = [service for service in services.values() if wanted <= service["metadata"]["labels"].items()]
            assert {end["port"] for end in one["spec"]["endpoints"]} <= {
                port["name"] for port in scraped["spec"]["ports"]
            }
            # The alerts name this job.
            assert scraped["metadata"]["labels"][one["spec"]["jobLabel"]] == "flash-indexer"
        if one["kind"].endswith("RoleBinding"):
            (role,) = [role for role in objects if role["kind"] == one["roleRef"]["kind"]]
            assert role["metadata"]["name"] == one["roleRef"]["name"]
            assert role["metadata"].get("namespace") == one["metadata"].get("namespace")
            (account,) = [account for account in objects if account["kind"] == "ServiceAccount"]
            assert one["subjects"] == [
                {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": NAMESPACE}
            ]
            assert account["metadata"]["name"] == pods["spec"]["template"]["spec"]["serviceAccountName"]
    for selector in selectors:
        assert selector.items() <= labels.items()
    for service in services.values():
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_pods_have_no_rights_that_they_do_not_need(values: Path) -> None:
    objects = rendered(values)
    pod = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    # Kubernetes would set FLASH_INDEXER_PORT=tcp://… for a Service named flash-indexer, the name of --port's.
    assert pod["enableServiceLinks"] is False
    finds_pods = any(one["kind"].endswith("RoleBinding") for one in objects)
    assert pod["automountServiceAccountToken"] is finds_pods


def test_every_option_exists_and_is_rendered_by_a_value_file() -> None:
    options = serve_options()
    source = (CHART / "templates/_args.tpl").read_text()
    written = set(re.findall(r"(--[a-z][a-z-]+)", source)) - {"--help"}
    used = {argument.split("=")[0] for path in VALUES for argument in container(rendered(path))["args"][1:]}
    assert used <= options, "the service has no such option"
    assert written <= used, "no value file renders it"
    variables = {name for path in VALUES for name in re.findall(r"FLASH_INDEXER_\w+", path.read_text())}
    assert {"--" + name.removeprefix("FLASH_INDEXER_").lower().replace("_", "-") for name in variables} <= options


def test_the_service_gets_ready_with_the_rendered_arguments(values: Path, tmp_path: Path) -> None:
    objects = rendered(values)
    options = {argument.split("=")[0] for argument in container(objects)["args"]}
    with statefulset(objects, tmp_path) as replicas:
        for number, replica in enumerate(replicas):
            assert replica.passes("livenessProbe") and replica.passes("startupProbe")
            assert replica.get("/workers")[0] == (401 if options & {"--token-file", "--jwt-keys"} else 200)
            assert replica.get("/workers", replica.secrets.token)[0] == 200
            if "--redis" in options:
                assert replica.get("/store")[1]["status"] == "ok"
            # A later replica finds an earlier one, with the token and the certificates of peers.
            source = replica.get("/ready")[1]["recovered_from"]
            assert ("peer" in source) == ("--peers" in options and number > 0), source
    if "--state-dir" in options:
        assert list(tmp_path.glob("0/var/lib/flash-indexer/snapshot-*")), "the stop writes a snapshot"


def test_the_chart_is_packaged_with_its_rules(tmp_path: Path) -> None:
    check("helm", "package", CHART, "--destination", tmp_path)
    settings = "access.insecure=true,prometheusRule.enabled=true,dashboard.enabled=true"
    (package,) = tmp_path.glob("*.tgz")
    shown = run("helm", "template", RELEASE, package, "--kube-version", KUBERNETES[0], "--set", settings)
    assert shown.returncode == 0 and "IndexerDown" in shown.stdout, shown.stderr


def notes(folder: Path, *settings: str) -> str:
    """What `helm install` prints. `helm template` omits it, so a copy of the chart has it in an object."""
    chart = shutil.copytree(CHART, folder / "chart")
    text = (chart / "templates/NOTES.txt").read_text()
    (chart / "templates/notes.yaml").write_text(
        f'{{{{- define "notes" }}}}{text}{{{{ end }}}}\nnotes: {{{{ include "notes" . | toJson }}}}'
    )
    options = [option for setting in settings for option in ("--set", setting)]
    shown = ("--kube-version", KUBERNETES[0], "--show-only", "templates/notes.yaml")
    return yaml.safe_load(check("helm", "template", RELEASE, chart, *shown, *options))["notes"]


TOKENS = ("access.tokenSecret=t", "peers.tokenSecret=p")
EVERY_HOST = "Every host that reaches the port may"
EVERY_ENGINE = "Every host that reaches the port for engines"
NO_SOURCE = "No discovery source is set"


@pytest.mark.parametrize(
    ("settings", "present", "absent"),
    [
        (
            ("access.insecure=true",),
            [
                "doctor http://127.0.0.1:8090\n",
                EVERY_HOST,
                f"{NO_SOURCE}: register each engine with POST /register at every",
            ],
            ["TOKEN", "tls"],
        ),
        (("access.insecure=true", "redis.url=redis://r"), ["at a replica"], []),
        (("access.insecure=true", "extraArgs={--discovery-vllm=a:1}"), [], [NO_SOURCE]),
        (("access.insecure=true", *TOKENS), ["FLASH_INDEXER_TOKEN"], [EVERY_HOST, EVERY_ENGINE]),
        (("access.insecure=true", *TOKENS, "replicas=1", "listenEvents.enabled=true"), [EVERY_ENGINE], [EVERY_HOST]),
        (
            ("tls.secret=s", *TOKENS),
            ["doctor https://127.0.0.1:8090 --tls-ca ca.crt\n", "FLASH_INDEXER_TOKEN", "certificate needs"],
            [EVERY_HOST],
        ),
        (
            ("tls.secret=s", "tls.clientAuth=true"),
            ["--tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key\n"],
            ["TOKEN", EVERY_HOST],
        ),
    ],
)
def test_the_notes_are_true(tmp_path: Path, settings: tuple[str, ...], present: list[str], absent: list[str]) -> None:
    text = notes(tmp_path, *settings)
    assert [part for part in present if part not in text] == [], text
    assert [part for part in absent if part in text] == [], text
