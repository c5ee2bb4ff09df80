"""A router without a service: follows the engines itself, and prints the engine for each prompt.

    pip install target/wheels/flash_indexer_native-*.whl pyzmq
    python clients/python-native/examples/router.py --block-size 16 1=tcp://gpu-1:5557,tcp://gpu-1:6557 2=tcp://gpu-2:5557

An engine is its number, the endpoint of its events, and of its replays if it has one (vLLM's `replay_endpoint`).
Prompts are lines of token ids on the standard input. One thread follows the engines; queries run beside it.
"""

import argparse
import sys
import threading

import numpy as np
import zmq
from flash_index import TRUST, FlashIndex, Report


class Follower:
    """Applies the messages of one engine, and requests what is missing."""

    def __init__(self, index: FlashIndex, number: int, events: str, replays: str | None) -> None:
        self._index, self._number, self._replays = index, number, replays
        self._replay: zmq.Socket[bytes] | None = None
        self._attempt = 0
        index.register(number, replays=replays is not None)
        self._events: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._events.subscribe(b"")
        self._events.connect(events)

    def poll(self) -> None:
        """Receives what has arrived."""
        while self._events.poll(0):
            self._handle(self._index.apply_frames(self._number, self._events.recv_multipart()))
        while self._replay is not None and self._replay.poll(0):
            frames = self._replay.recv_multipart()
            self._handle(self._index.apply_replayed(self._number, self._attempt, frames))
        self._handle(self._index.tick(self._number))

    def _handle(self, report: Report) -> None:
        for rejection in report.rejections:
            print(f"engine {self._number}: {rejection.count} rejected: {rejection.message}", file=sys.stderr)
        if report.replay is not None and self._replays is not None:
            if self._replay is not None:
                self._replay.close(linger=0)
            self._attempt = report.replay.attempt
            self._replay = zmq.Context.instance().socket(zmq.DEALER)
            self._replay.connect(self._replays)
            self._replay.send_multipart([b"", report.replay.first.to_bytes(8, "big")])


def follow(followers: list[Follower], stop: threading.Event) -> None:
    while not stop.wait(0.002):
        for follower in followers:
            follower.poll()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", metavar="NUMBER=EVENTS[,REPLAYS]")
    parser.add_argument("--block-size", type=int, default=16)
    arguments = parser.parse_args()
    index, stop = FlashIndex(arguments.block_size), threading.Event()
    followers = []
    for engine in arguments.engines:
        number, _, endpoints = engine.partition("=")
        events, _, replays = endpoints.partition(",")
        followers.append(Follower(index, int(number), events, replays or None))
    thread = threading.Thread(target=follow, args=(followers, stop))
    thread.start()
    for line in sys.stdin:
        matches = index.query(np.fromstring(line, dtype=np.uint32, sep=" "), top_k=1)
        if len(matches) == 0:
            print("no engine holds its first block", flush=True)
            continue
        tokens = int(matches.blocks[0, 0]) * arguments.block_size
        trust = TRUST[matches.trust[0]]
        print(f"engine {matches.instances[0]} holds {tokens} tokens ({trust})", flush=True)
    stop.set()
    thread.join()


if __name__ == "__main__":
    main()
