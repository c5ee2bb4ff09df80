"""Envoy in front of two HTTP servers that stand for engines, with the service as its endpoint picker."""

import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import envoy
import msgpack
import zmq

ROOT = Path(__file__).parents[4]
BINARY = Path(os.environ.get("FLASH_INDEXER_BINARY", ROOT / "target/debug/flash-indexer"))
ENVOY = Path(envoy.__file__).parent / "_bin/envoy"
TOKENIZER = ROOT / "crates/prompt/tests/tokenize/models/byte_level"
MODEL = "llama-3-8b"
BLOCK_SIZE = 4
PATIENCE_S = 60.0
DESTINATION = "x-gateway-destination-endpoint"


def wait_for(what: str, condition: Callable[[], Any]) -> Any:
    """Polls a condition until it holds, and returns its value."""
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.05)
    return value


@contextmanager
def program(*command: object) -> Iterator[list[str]]:
    """Lines that a program writes. It ends with the block."""
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines: list[str] = []
    # A full pipe would stop the program.
    reader = threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        reader.join()


class Pod:
    """An HTTP server that stands for an engine, and the socket of its events.

    It answers with its address, the request's body, and a stream of two chunks. The second one waits for `proceed`.
    """

    def __init__(self, context: zmq.Context) -> None:
        self.proceed = threading.Event()
        self.proceed.set()
        pod = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def chunk(self, data: bytes) -> None:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

            def body(self) -> bytes:
                if (length := self.headers.get("content-length")) is not None:
                    return self.rfile.read(int(length))
                if "chunked" not in self.headers.get("transfer-encoding", ""):
                    return b""
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def answer(self) -> None:
                body = self.body()
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.send_header("x-pod", pod.address)
                self.end_headers()
                self.chunk(b"data: %d\n\n" % len(body))
                assert pod.proceed.wait(PATIENCE_S)
                self.chunk(b"data: [DONE]\n\n")
                self.chunk(b"")

            do_POST = do_GET = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.events = context.socket(zmq.PUB)
        self.events_port = self.events.bind_to_random_port("tcp://127.0.0.1")
        self.sequence = 0
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def store(self, tokens: list[int]) -> None:
        """Publishes that it holds these tokens."""
        blocks = len(tokens) // BLOCK_SIZE
        stored = ["BlockStored", list(range(1, blocks + 1)), None, tokens[: blocks * BLOCK_SIZE], BLOCK_SIZE, None]
        batch = msgpack.packb([time.time(), [stored], 0])
        self.events.send_multipart([b"", self.sequence.to_bytes(8, "big"), batch])
        self.sequence += 1


class Gateway:
    """A running gateway: addresses of its listeners by the mode of bodies, its service and its pods."""

    def __init__(self, url: str, listeners: dict[str, str], pods: list[Pod]) -> None:
        self.url = url
        self.listeners = listeners
        self.pods = pods

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.load(response)

    def requests_in_flight(self) -> int:
        """Requests in flight of all pods."""
        picked = self.post("/pick", {"model": MODEL, "token_ids": [], "detail": True})
        return sum(candidate["load"]["requests"] for candidate in picked["candidates"])

    def picks(self, outcome: str) -> int:
        """Endpoint picks, by outcome."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=PATIENCE_S) as response:
            text = response.read().decode()
        found = re.search(rf'^flash_indexer_endpoint_picks_total{{outcome="{outcome}"}} (\d+)', text, re.MULTILINE)
        assert found is not None, text
        return int(found.group(1))


def listener(mode: str, cluster: str) -> dict[str, Any]:
    """A listener whose bodies are sent in this mode."""
    response_mode = mode if mode == "FULL_DUPLEX_STREAMED" else "NONE"
    processor = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "message_timeout": "10s",
        "allow_mode_override": mode == "NONE",
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": mode,
            "response_body_mode": response_mode,
            "request_trailer_mode": "SEND" if mode == "FULL_DUPLEX_STREAMED" else "SKIP",
            "response_trailer_mode": "SEND",
        },
        "metadata_options": {
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
            "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
        },
    }
    # The subset of the request's own header, as a gateway makes one from its routes.
    subset = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
        "request_rules": [
            {
                "header": "x-subset",
                "on_header_present": {
                    "metadata_namespace": "envoy.lb.subset_hint",
                    "key": f"{DESTINATION}-subset",
                    "type": "STRING",
                },
            }
        ],
    }
    router = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
    network = "type.googleapis.com/envoy.extensions.filters.network"
    manager = {
        "@type": f"{network}.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": mode.lower(),
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": cluster, "timeout": "60s"}}],
                }
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.header_to_metadata", "typed_config": subset},
            {"name": "envoy.filters.http.ext_proc", "typed_config": processor},
            {"name": "envoy.filters.http.router", "typed_config": router},
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    return {"name": mode, "address": address, "filter_chains": [{"filters": filters}]}


def configuration(picker_port: int) -> dict[str, Any]:
    """Envoy's configuration. One cluster reads the picked address from the header, the other from the metadata."""
    endpoint = {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": picker_port}}}}
    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    picker = {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "5s",
        "typed_extension_protocol_options": http2,
        "load_assignment": {"cluster_name": "picker", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    pool = {"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "5s"}
    by_header = {"use_http_header": True, "http_header_name": DESTINATION}
    by_metadata = {"metadata_key": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}
    return {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "static_resources": {
            "listeners": [
                listener("FULL_DUPLEX_STREAMED", "by_header"),
                listener("BUFFERED", "by_metadata"),
                listener("NONE", "by_header"),
            ],
            "clusters": [
                picker,
                pool | {"name": "by_header", "original_dst_lb_config": by_header},
                pool | {"name": "by_metadata", "original_dst_lb_config": by_metadata},
            ],
        },
    }


def find(lines: list[str], pattern: str) -> Any:
    """The first group of a pattern in the lines of a program."""
    return next((found.group(1) for line in list(lines) if (found := re.search(pattern, line))), None)


def listening(admin: Path) -> dict[str, str] | None:
    """The addresses of Envoy's listeners, if it has started."""
    if not admin.exists() or not (address := admin.read_text()):
        return None
    with urllib.request.urlopen(f"http://{address}/listeners?format=json", timeout=PATIENCE_S) as response:
        statuses = json.load(response).get("listener_statuses", [])
    addresses = {status["name"]: status["local_address"]["socket_address"] for status in statuses}
    found = {name: f"127.0.0.1:{address['port_value']}" for name, address in addresses.items()}
    return found if len(found) == 3 else None


@contextmanager
def running(folder: Path) -> Iterator[Gateway]:
    """A gateway with two pods."""
    context = zmq.Context()
    pods = [Pod(context), Pod(context)]
    options = ["--port", 0, "--endpoint-picker-bind", "127.0.0.1:0", "--tokenizer", f"{MODEL}={TOKENIZER}"]
    with program(BINARY, "serve", *options) as log:
        url = wait_for("listening", lambda: find(log, r"listening on (http://[\d.:]+)"))
        picker = wait_for("listening", lambda: find(log, r"listening for gateways on [\d.]+:(\d+)"))
        file, admin = folder / "envoy.json", folder / "admin"
        file.write_text(json.dumps(configuration(int(picker))))
        command = [ENVOY, "-c", file, "--admin-address-path", admin, "--use-dynamic-base-id", "-l", "warning"]
        with program(*command) as envoy_log:
            try:
                gateway = Gateway(url, wait_for("Envoy", lambda: listening(admin)), pods)
            except AssertionError as late:
                raise AssertionError("".join(envoy_log)) from late
            for pod in pods:
                registration = {
                    "instance_id": pod.address,
                    "endpoint": f"tcp://127.0.0.1:{pod.events_port}",
                    "model_name": MODEL,
                    "block_size": BLOCK_SIZE,
                }
                gateway.post("/register", registration)
            wait_for("connections to both pods", lambda: all(ready(gateway)))
            yield gateway
    for pod in pods:
        pod.server.shutdown()
        pod.events.close(0)
    context.term()


def ready(gateway: Gateway) -> list[bool]:
    """Whether each pod is ready."""
    try:
        picked = gateway.post("/pick", {"model": MODEL, "token_ids": [], "detail": True})
    except urllib.error.HTTPError:
        return [False]
    return [candidate["ready"] for candidate in picked["candidates"]]
