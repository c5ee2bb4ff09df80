"""Every expression of the dashboard and of the alerts, evaluated by a Prometheus that scrapes a running service."""

import http.client
import json
import math
import random
import re
import shutil
import socket
import struct
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from cluster import Secrets
from support import BINARY, ROOT, free_port, running, wait_for

DASHBOARD = json.loads((ROOT / "deploy/grafana/flash-indexer.json").read_text())
RULES = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
MODEL, BLOCK_SIZE = "acme/test-model", 64
# What Grafana fills in.
VARIABLES = {"$job": "flash-indexer", "$instance": ".*", "$model": ".*", "$__rate_interval": "30s", "$__range": "60s"}


def expressions() -> list[tuple[str, str]]:
    """The expressions of all panels, with their titles."""
    found = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    for title, expression in found:
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression, f"{title} has an unknown variable: {expression}"
        yield title, expression


def selectors() -> list[tuple[str, str]]:
    """The selectors in the expressions of all alerts, and in the variables of the dashboard."""
    for group in RULES["groups"]:
        for rule in group["rules"]:
            for selector in re.findall(r"(?:\w+_\w+|\bup)\{[^}]*\}", rule["expr"]):
                yield rule["alert"], selector
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            with_label = selector.replace("$job", "flash-indexer")
            with_label = with_label[:-1] + f', {label}!=""}}' if "{" in with_label else f'{with_label}{{{label}!=""}}'
            yield f"variable {variable['name']}", with_label


class Clients:
    """Clients of the service that keep every part of it busy, and make every mistake that a metric counts."""

    def __init__(self, port: int, grpc_port: int, secrets: Secrets) -> None:
        self._port, self._secrets = port, secrets
        self._stopping = threading.Event()
        self._stopped_by: list[Exception] = []
        self._thread = threading.Thread(target=self._run)
        self._grpc = grpc.secure_channel(
            f"127.0.0.1:{grpc_port}", grpc.ssl_channel_credentials((secrets.folder / "ca.crt").read_bytes())
        )

    def __enter__(self) -> "Clients":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._grpc.close()
        assert not self._stopped_by, self._stopped_by

    def post(self, path: str, body: object, token: str | None = None) -> int:
        made = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=30, context=self._secrets.client())
        try:
            headers = {"authorization": f"Bearer {token or self._secrets.token}"}
            if not isinstance(body, bytes):
                headers["content-type"], body = "application/json", json.dumps(body).encode()
            else:
                headers["content-type"] = "application/octet-stream"
            made.request("POST", path, body, headers)
            return made.getresponse().status
        finally:
            made.close()

    def _run(self) -> None:
        try:
            self._ask_until_the_end()
        except Exception as error:
            self._stopped_by.append(error)

    def _ask_until_the_end(self) -> None:
        call = self._grpc.unary_unary("/flash_indexer.v1.RouterService/Query")
        while not self._stopping.wait(0.1):
            tokens = struct.pack(f"<{2 * BLOCK_SIZE}I", *(random.randrange(50) for _ in range(2 * BLOCK_SIZE)))
            assert self.post(f"/query?model_name={MODEL}", tokens) == 200
            text = " ".join(str(random.randrange(10_000)) for _ in range(200))
            prompt = {"model": MODEL, "prompt": text}
            assert self.post("/predict", {**prompt, "pod": "gpu-1"}) == 200
            assert self.post("/score_completions", prompt) == 200
            # Mistakes: an unknown token, a wrong field, a prompt that only the engine knows, no TLS, and no model.
            assert self.post("/query", {}, token="x" * 40) == 401
            assert self.post("/query", {}) == 422
            message = {"role": "user", "content": [{"type": "file"}]}
            assert self.post("/score_chat_completions", {"model": MODEL, "messages": [message]}) == 501
            with socket.create_connection(("127.0.0.1", self._port)) as plain:
                plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                plain.recv(1)
            with pytest.raises(grpc.RpcError):
                call(b"", metadata=[("authorization", f"Bearer {self._secrets.token}")])


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as answer:
            return json.load(answer)["data"]

    def is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"{self._url}/-/ready").close()
            return True
        except urllib.error.HTTPError:
            return False

    def values(self, expression: str) -> list[float]:
        """The numbers that an expression has now."""
        values = [float(sample["value"][1]) for sample in self.ask("query", query=expression)["result"]]
        return [value for value in values if not math.isnan(value)]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes two replicas with every optional part, over TLS and with a token."""
    folder = tmp_path_factory.mktemp("monitoring")
    secrets = Secrets(folder / "secrets", "query,events,admin")
    ports = [free_port() for _ in range(9)]
    (port, peer_port, grpc_port, store, prometheus_port, live, replay, dead, killed) = ports
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / "tokenizers" / MODEL).mkdir(parents=True, exist_ok=True)
        packed = ROOT / "testdata/tokenizers/test-model" / f"{name}.zst"
        subprocess.run(["zstd", "-dq", packed, "-o", folder / "tokenizers" / MODEL / name], check=True)

    engine = {
        "instance_id": "gpu-1",
        "endpoint": f"tcp://127.0.0.1:{live}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
    }
    (folder / "engines.json").write_text(json.dumps([engine]))
    # A second source names a rank differently: it is overruled. Its other engine never starts.
    others = [
        {**engine, "endpoint": "tcp://127.0.0.1:1"},
        {"instance_id": "dead", "endpoint": f"tcp://127.0.0.1:{dead}"},
    ]
    (folder / "others.json").write_text(json.dumps(others))
    files = {name: secrets.folder / name for name in ("tls.crt", "tls.key", "ca.crt", "tokens.toml", "token")}
    serve = [
        *(BINARY, "serve", "--block-size", BLOCK_SIZE, "--model-name", MODEL, "--memory-max", "64MiB"),
        *("--tls-cert", files["tls.crt"], "--tls-key", files["tls.key"], "--token-file", files["tokens.toml"]),
        *("--peer-ca", files["ca.crt"], "--peer-token-file", files["token"], "--peer-check-interval-s", 1),
        *("--redis", f"redis://127.0.0.1:{store}", "--tokenizer-dir", folder / "tokenizers"),
        *("--discovery-file", f"{folder / 'engines.json'},{folder / 'others.json'}"),
    ]
    scrape = {
        "job_name": "flash-indexer",
        "scrape_interval": "1s",
        "scheme": "https",
        "tls_config": {"ca_file": str(files["ca.crt"])},
        "authorization": {"credentials_file": str(files["token"])},
        "static_configs": [{"targets": [f"127.0.0.1:{port}", f"127.0.0.1:{peer_port}"]}],
    }
    rules = str(ROOT / "deploy/prometheus/alerts.yaml")
    settings = {"global": {"evaluation_interval": "1s"}, "scrape_configs": [scrape], "rule_files": [rules]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))

    with ExitStack() as stack:
        started = lambda name, *command: stack.enter_context(running(folder / f"{name}.log", *command))  # noqa: E731
        started("store", "redis-server", "--port", store, "--save", "")
        simulate = (BINARY, "simulate", "--engines", 1, "--block-size", BLOCK_SIZE, "--requests", 100_000_000)
        started("engine", *simulate, "--port", live, "--replay-port", replay, "--seed", 7)
        started(
            "a",
            *serve,
            "--port",
            port,
            "--grpc-port",
            grpc_port,
            "--peers",
            f"https://127.0.0.1:{peer_port}",
            "--state-dir",
            folder / "state",
            "--state-interval-s",
            1,
        )
        started("b", *serve, "--port", peer_port, "--peers", f"https://127.0.0.1:{port}")
        started(
            "prometheus",
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{prometheus_port}",
        )
        clients = Clients(port, grpc_port, secrets)
        # An engine without a replay endpoint that ends: its rank is disconnected and degraded.
        ending = started("ending", *simulate, "--port", killed, "--replay-port", 0)
        wait_for("the service", lambda: is_open(port) and is_open(grpc_port) and is_open(prometheus_port))
        rank = {
            "instance_id": "killed",
            "endpoint": f"tcp://127.0.0.1:{killed}",
            "model_name": MODEL,
            "block_size": BLOCK_SIZE,
        }
        assert clients.post("/register", rank) == 201
        asked = Prometheus(f"http://127.0.0.1:{prometheus_port}")
        wait_for("Prometheus", asked.is_ready)
        wait_for("a scrape", lambda: asked.values('sum(flash_indexer_listeners{status="connected"})') >= [3])
        ending.kill()
        ending.wait()
        stack.enter_context(clients)
        yield asked
    shutil.rmtree(folder)


def is_open(port: int) -> bool:
    """Whether a program listens at a port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def test_every_panel_has_data(prometheus: Prometheus) -> None:
    for title, expression in expressions():
        wait_for(f"data of {title}: {expression}", lambda expression=expression: prometheus.values(expression))


def test_every_selector_of_an_alert_has_a_series(prometheus: Prometheus) -> None:
    for name, selector in selectors():
        wait_for(
            f"{name}: a series of {selector}",
            lambda selector=selector: prometheus.ask("series", **{"match[]": selector}),
        )


def test_prometheus_evaluates_every_alert(prometheus: Prometheus) -> None:
    def evaluated() -> list[Any]:
        (group,) = prometheus.ask("rules")["groups"]
        return group["rules"] if all(rule["health"] != "unknown" for rule in group["rules"]) else []

    rules = wait_for("an evaluation", evaluated)
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    # What the fixture breaks is seen: a rank without a connection, and an overruled one.
    states = lambda: {rule["name"]: rule["state"] for rule in prometheus.ask("rules")["groups"][0]["rules"]}  # noqa: E731
    for alert in ("EngineNotConnected", "EnginesNotTaken", "QueriesRefused"):
        wait_for(alert, lambda alert=alert: states()[alert] in ("pending", "firing"))


def test_what_alerts_compare_is_there_from_the_start(tmp_path: Path) -> None:
    """A rule sees an increase only of a series that existed before it."""
    port = free_port()
    with running(tmp_path / "log", BINARY, "serve", "--port", port):
        wait_for("the service", lambda: is_open(port))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read().decode()
    compared = [
        selector
        for group in RULES["groups"]
        for rule in group["rules"]
        for selector in re.findall(r"increase\((\w+\{[^}]*\})", rule["expr"])
    ]
    assert len(compared) >= 10
    for selector in compared:
        name, matchers = selector.rstrip("}").split("{")
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
            for value in values.split("|") if label != "job" else ():
                assert re.search(rf'^{name}\{{[^}}]*{label}="{value}"', metrics, re.MULTILINE), f"{selector}: {value}"
        assert re.search(rf"^{name}[ {{]", metrics, re.MULTILINE), selector


def test_the_dashboard_is_well_formed() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        squares = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not squares & places, f"{panel['title']} covers another panel"
        places |= squares


def lost(given: Any, kept: Any, path: str) -> list[str]:
    """The paths of what one value has and another one has not or differently."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [loss for key in given for loss in lost(given[key], kept.get(key), f"{path}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [loss for at, pair in enumerate(zip(given, kept, strict=True)) for loss in lost(*pair, f"{path}[{at}]")]
    return [] if given == kept else [path]


def test_the_dashboard_has_fields_that_grafana_knows() -> None:
    """Grafana's own types read the dashboard with its panels and queries, and write the same again."""
    register_default_plugins()
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert lost(DASHBOARD, written, "dashboard") == []


def test_expressions_name_documented_metrics() -> None:
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs/reference/metrics.md").read_text()))
    for name, expression in [*expressions(), *selectors()]:
        for metric in re.findall(r"flash_indexer_\w+", expression):
            plain = re.sub(r"_bucket$", "", metric.removeprefix("flash_indexer_"))
            assert plain in documented, f"{name}: {metric} is not in docs/reference/metrics.md"
