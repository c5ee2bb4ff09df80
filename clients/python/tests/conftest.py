"""A real service, and an engine that publishes to it."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from flash_indexer import Client

ROOT = Path(__file__).parents[3]
BINARY = Path(os.environ.get("FLASH_INDEXER_BINARY", ROOT / "target/debug/flash-indexer"))
BLOCK_SIZE = 4
PATIENCE_S = 30.0


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Polls a condition until it holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.01)


def tokens(blocks: range) -> list[int]:
    """The tokens of blocks by number."""
    return [100 * block + offset for block in blocks for offset in range(BLOCK_SIZE)]


class Item:
    """An integer of another type, as an item of a numpy array is."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Engine:
    """One engine with a publishing socket."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._sequence = 0
        client.register(name, f"tcp://127.0.0.1:{port}", "m", BLOCK_SIZE)
        assert self._socket.poll(int(1000 * PATIENCE_S)), "the service does not subscribe"

    def store(self, blocks: range) -> None:
        """Publishes blocks as one chain, and waits until the service has applied them."""
        self._publish(["BlockStored", list(blocks), blocks[0] - 1 or None, tokens(blocks), BLOCK_SIZE, None])

    def store_prompt(self, prompt: list[int]) -> None:
        """Publishes the complete blocks of a prompt, and waits until the service has applied them."""
        blocks = range(1, len(prompt) // BLOCK_SIZE + 1)
        tokens = prompt[: len(blocks) * BLOCK_SIZE]
        self._publish(["BlockStored", list(blocks), None, tokens, BLOCK_SIZE, None])

    def clear(self) -> None:
        """Publishes that the cache is empty, and waits until the service has applied it."""
        self._publish(["AllBlocksCleared"])

    def _publish(self, event: list[Any]) -> None:
        payload = msgspec.msgpack.encode([time.time(), [event], None])
        sequence = self._sequence
        self._sequence += 1
        self._socket.send_multipart([b"", sequence.to_bytes(8, "big"), payload])
        wait_for("the message", lambda: self._listener()["last_seq"] == sequence)

    def _listener(self) -> Any:
        (worker,) = [worker for worker in self.client.workers() if worker["instance_id"] == self.name]
        return worker["listeners"]["0"]

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of a running service."""
    if not BINARY.exists():
        pytest.fail(f"{BINARY} is missing; build it with `cargo build`, or set FLASH_INDEXER_BINARY")
    process = subprocess.Popen(
        [BINARY, "serve", "--port", "0"], stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    address = re.search(r"http://\S+", line)
    assert address is not None, line
    yield address.group()
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, deadline_s=PATIENCE_S) as client:
        yield client


@pytest.fixture
def engine(client: Client) -> Iterator[Engine]:
    """An engine that holds blocks 1 to 100."""
    engine = Engine(client, "gpu-1")
    engine.store(range(1, 101))
    yield engine
    engine.close()
    client.unregister("gpu-1", "m")
