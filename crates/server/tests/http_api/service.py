"""A service with a simulated engine."""

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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[4]
BINARY = Path(os.environ.get("FLASH_INDEXER_BINARY", ROOT / "target/debug/flash-indexer"))
TOKENIZER = ROOT / "crates/prompt/tests/tokenize/models/byte_level"
MODEL = "llama-3-8b"
BLOCK_SIZE = 16
ENGINES = 2
PATIENCE_S = 60.0
PROMPT = {"model_name": MODEL, "token_ids": list(range(BLOCK_SIZE))}
"""A prompt of one block that no engine holds."""


def wait_for(what: str, condition: Callable[[], Any]) -> Any:
    """Polls a condition until it holds, and returns its value."""
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.05)
    return value


class Service:
    """A running service. Its engines hold blocks, and `instance` holds those of `block_hashes` as a prefix."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self.instance = 1
        self.request_id = "in-flight"
        self.block_hashes: list[int] = []
        self.prompt_hash = 0
        """Local hash of the block of `PROMPT`."""

    def get(self, path: str) -> Any:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.load(response)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.load(response)

    def workers(self) -> list[dict[str, Any]]:
        return self.get(f"/workers?model_name={MODEL}")

    def held_hashes(self) -> list[int]:
        """Local hashes of a prompt whose blocks `instance` holds."""
        (model,) = self.get(f"/dump?model_name={MODEL}&instance_id={self.instance}").values()
        stored = (event["event"]["data"].get("stored", {}) for event in model["events"])
        return next([b["tokens_hash"] for b in one["blocks"]] for one in stored if one and one["parent_hash"] is None)

    def begin_request(self) -> None:
        """Has the service count `request_id` as in flight, also after another request ended it."""
        request = {"model_name": MODEL, "pod": self.instance, "request_id": self.request_id}
        self.post("/predict", request | {"token_ids": [1]})

    def check_unharmed(self) -> None:
        """No request unregistered an engine, and no thread panicked."""
        assert len(self.workers()) == ENGINES
        assert "panics" not in self.get("/ready")


def read_all(stream: Any, lines: list[str]) -> None:
    for line in stream:
        lines.append(line)


@contextmanager
def program(*command: object, env: dict[str, str] | None = None) -> Iterator[list[str]]:
    """Lines that a program writes. It ends with the block."""
    environment = os.environ | {name: value for name, value in (env or {}).items() if value}
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    lines: list[str] = []
    # A full pipe would stop the program.
    reader = threading.Thread(target=read_all, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        reader.join()


@contextmanager
def running(*options: object, token: str = "") -> Iterator[Service]:
    """A service with these options. `token` permits everything, if the service needs tokens."""
    networks = ["--engine-networks", "127.0.0.0/8,::1/128"]
    tokenizer = ["--tokenizer", f"{MODEL}={TOKENIZER}", "--prompt-text-bytes", "16MiB"]
    with program(BINARY, "serve", "--port", 0, "--frequency-window-s", 60, *networks, *tokenizer, *options) as log:
        line = wait_for("listening", lambda: next((line for line in log if "listening on http" in line), None))
        service = Service(re.search(r"http://[\d.:]+", line).group(), token)
        engines = ["--engines", ENGINES, "--block-size", BLOCK_SIZE, "--requests", 200, "--port", 0, "--replay-port", 0]
        register = ["--register", service.url, "--model-name", MODEL, "--stay"]
        with program(BINARY, "simulate", *engines, *register, env={"FLASH_INDEXER_TOKEN": token}) as simulation:
            wait_for("the simulation", lambda: any("staying up" in line for line in simulation))
            service.block_hashes = service.held_hashes()
            service.prompt_hash = service.post("/explain", PROMPT)["ranks"][0]["ends"][0]["local_hash"]
            yield service


def new_token() -> tuple[str, str]:
    """A token that permits everything, and its entry of a token file."""
    command = [BINARY, "token", "tests", "--scope", "query,events,admin"]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    token = re.search(r"fidx_\w+", made.stderr)
    assert token is not None, made.stderr
    return token.group(), made.stdout
