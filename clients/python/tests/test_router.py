"""The example router, as a process, between a real service and stub back ends."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import BINARY, BLOCK_SIZE, PATIENCE_S, Engine, wait_for

from flash_indexer import Client

EXAMPLE = Path(__file__).parents[1] / "examples/router.py"
WORDS = "user is the index of cached blocks across a fleet exact or not ?".split()
CHAT = {"model": "m", "messages": [{"role": "user", "content": " ".join(WORDS[1:])}]}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer of a few words, and a chat template."""
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *WORDS])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    parts = ("truncation", "padding", "normalizer", "post_processor", "decoder")
    tokenizer: dict[str, Any] = {"version": "1.0", "added_tokens": [], **dict.fromkeys(parts), "model": model}
    tokenizer["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    template = "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def indexer(tokenizer: Path) -> Iterator[str]:
    """The address of a service with the tokenizer."""
    command = [str(BINARY), "serve", "--port", "0", "--tokenizer", f"m={tokenizer}"]
    process = subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = re.search(r"http://\S+", process.stdout.readline())
    assert address is not None
    yield address.group()
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


class BackEnd:
    """A stub that answers each chat with its name and the chat, as a stream."""

    def __init__(self, name: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                chat = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                self.wfile.write(f"data: {name} {self.path} ".encode() + chat)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def back_ends() -> Iterator[dict[str, str]]:
    """The addresses of two stubs."""
    stubs = {name: BackEnd(name) for name in ("gpu-1", "gpu-2")}
    yield {name: stub.url for name, stub in stubs.items()}
    for stub in stubs.values():
        stub.close()


@contextmanager
def routing(indexer: str, back_ends: dict[str, str]) -> Iterator[str]:
    """The address of a router between these."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    engines = [f"{name}={url}" for name, url in back_ends.items()]
    command = [sys.executable, str(EXAMPLE), "--indexer", indexer, "--port", str(port), *engines]
    process = subprocess.Popen(command, env={**os.environ, "NO_PROXY": "127.0.0.1"}, stderr=subprocess.DEVNULL)

    def is_up() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for("the router's start", is_up)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def send(router: str) -> tuple[str, str]:
    """The engine that the router chose for the chat, and the answer."""
    with httpx.Client(trust_env=False, timeout=PATIENCE_S) as http:
        answer = http.post(f"{router}/v1/chat/completions", json=CHAT)
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/event-stream"
    return answer.headers["x-engine"], answer.text


def wait_for_choice(router: str, name: str) -> None:
    """Sends chats until the router chooses this engine."""
    wait_for(f"the choice of {name}", lambda: send(router)[0] == name)


def test_a_chat_goes_to_the_engine_that_holds_its_prefix(indexer: str, back_ends: dict[str, str]) -> None:
    with Client(indexer, deadline_s=PATIENCE_S) as client, routing(indexer, back_ends) as router:
        engines = {name: Engine(client, name) for name in back_ends}
        prompt = client.tokenize({"model_name": "m", "messages": CHAT["messages"]})
        assert len(prompt) >= 3 * BLOCK_SIZE
        for holder in ("gpu-2", "gpu-1", "gpu-2"):
            engines[holder].store_prompt(prompt)
            # A score may take longer than the router's deadline. Then the load decides, and it never chooses gpu-2.
            wait_for_choice(router, holder)
            name, answer = send(router)
            assert answer == f"data: {name} /v1/chat/completions " + json.dumps(CHAT, separators=(",", ":"))
            engines[holder].clear()
        for engine in engines.values():
            engine.close()


def test_without_the_service_a_chat_is_routed_all_the_same(back_ends: dict[str, str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with routing(f"http://127.0.0.1:{unused.getsockname()[1]}", back_ends) as router:
            assert send(router)[0] == "gpu-1"
