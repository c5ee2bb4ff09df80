"""The example router, as a process, with an engine that has published before it starts."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
import zmq
from conftest import BLOCK_SIZE, PATIENCE_S, payload, stored, tokens, wait_for

EXAMPLE = Path(__file__).parents[1] / "examples/router.py"


class Engine:
    """An engine with sockets for events and for replays."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.XPUB)
        self._replays = self._context.socket(zmq.ROUTER)
        events = self._events.bind_to_random_port("tcp://127.0.0.1")
        replays = self._replays.bind_to_random_port("tcp://127.0.0.1")
        self.endpoints = f"tcp://127.0.0.1:{events},tcp://127.0.0.1:{replays}"
        self._payloads: list[bytes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._replay)
        self._thread.start()

    def publish(self, blocks: range) -> None:
        sequence = len(self._payloads)
        self._payloads.append(payload(stored(blocks)))
        self._events.send_multipart([b"", sequence.to_bytes(8, "big"), self._payloads[sequence]])

    def wait_for_subscriber(self) -> None:
        assert self._events.poll(int(1000 * PATIENCE_S)), "the router does not subscribe"

    def _replay(self) -> None:
        """Answers requests as vLLM does: each message from a number on, and an end."""
        while not self._stop.is_set():
            if self._replays.poll(10):
                peer, _, first = self._replays.recv_multipart()
                for number in range(int.from_bytes(first, "big"), len(self._payloads)):
                    self._replays.send_multipart([peer, b"", number.to_bytes(8, "big"), self._payloads[number]])
                self._replays.send_multipart([peer, b"", b"\xff" * 8, b""])

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._events.close(linger=0)
        self._replays.close(linger=0)
        self._context.term()


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.close()


def test_the_router_knows_what_an_engine_published_before_it_started(engine: Engine) -> None:
    engine.publish(range(1, 6))
    engine.publish(range(6, 11))
    command = [sys.executable, str(EXAMPLE), "--block-size", str(BLOCK_SIZE), f"7={engine.endpoints}"]
    router = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert router.stdin is not None and router.stdout is not None
    answers: SimpleQueue[str] = SimpleQueue()
    output = router.stdout

    def read() -> None:
        for line in output:
            answers.put(line.strip())

    reader = threading.Thread(target=read)
    reader.start()
    prompt = " ".join(str(token) for token in tokens(range(1, 30)))

    def answer() -> str:
        assert router.stdin is not None
        print(prompt, file=router.stdin, flush=True)
        return answers.get(timeout=PATIENCE_S)

    engine.wait_for_subscriber()
    engine.publish(range(11, 13))
    expected = f"engine 7 holds {12 * BLOCK_SIZE} tokens (exact)"
    wait_for("the replay", lambda: answer() == expected)
    router.stdin.close()
    assert router.wait(PATIENCE_S) == 0
    reader.join()
