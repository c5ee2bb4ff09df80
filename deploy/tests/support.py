"""Running programs, and what the programs of these tests share."""

import json
import os
import random
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/flash-indexer"
VALUES = sorted((Path(__file__).parent / "values").glob("*.yaml"))
BINARY = Path(os.environ.get("FLASH_INDEXER_BINARY", ROOT / "target/debug/flash-indexer"))
PATIENCE_S = 60.0


def wait_for(what: str, condition: Callable[[], object]) -> object:
    """Polls a condition until it holds, and returns its value."""
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.05)
    return value


def free_port() -> int:
    """A port that was free a moment ago, below those that the system gives to the tests that run beside these."""
    for port in random.sample(range(20_000, 32_768), 100):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("none of 100 ports is free")


def run(*command: object, **options: object) -> subprocess.CompletedProcess:
    """Runs a program to its end, and returns its result for every exit status."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)


def check(*command: object, **options: object) -> str:
    """Runs a program that must succeed, and returns its output."""
    result = run(*command, **options)
    assert result.returncode == 0, f"{command[0]} exited with {result.returncode}:\n{result.stdout}{result.stderr}"
    return result.stdout


def serve_options() -> set[str]:
    """The options that `flash-indexer serve --help` lists."""
    return set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", check(BINARY, "serve", "--help"), re.MULTILINE))


@contextmanager
def running(log: Path, *command: object, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen]:
    """A program that runs meanwhile. Its output is in a file, which an assertion of a test can show."""
    with log.open("w") as output:
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=subprocess.STDOUT, env=env)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


class Handler(BaseHTTPRequestHandler):
    """Answers of a server that stands in for another one."""

    def answer(self, status: int, body: object) -> None:
        """Sends bytes, or anything else as JSON."""
        is_encoded = isinstance(body, bytes)
        encoded = body if is_encoded else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/octet-stream" if is_encoded else "application/json")
        self.send_header("content-length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def serving(handler: Callable[..., Handler]) -> Iterator[tuple[str, threading.Event]]:
    """The address of an HTTP server on loopback, and an event that is set when it stops."""
    stopping = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", stopping
    finally:
        stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()
