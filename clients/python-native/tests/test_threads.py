"""Threads: calls let others run, and changes and queries run beside each other."""

import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from conftest import PATIENCE_S, frames, payload, stored
from flash_index import TRUST, FlashIndex, hash_tokens

CHAIN = np.arange(1, 65, dtype=np.uint64)
MANY = np.arange(1, 200_001, dtype=np.uint64)
PROMPT = np.arange(1_000_000, dtype=np.uint32)


@pytest.fixture
def no_switches() -> Iterator[None]:
    """A thread keeps the interpreter's lock until it releases it by itself."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10 * PATIENCE_S)
    yield
    sys.setswitchinterval(interval)


CALLS: dict[str, Callable[[FlashIndex], object]] = {
    "query": lambda index: index.query(PROMPT),
    "query_hashes": lambda index: index.query_hashes(MANY),
    "hash_tokens": lambda index: hash_tokens(PROMPT, 16),
    "store": lambda index: index.store(1, MANY, MANY),
    "copy": lambda index: index.copy(1, MANY, tier="disk"),
    "remove": lambda index: index.remove(1, MANY),
    "clear": lambda index: index.clear(1),
    "apply_frames": lambda index: index.apply_frames(2, frames(0, stored(range(1, 3)))),
    "apply_payload": lambda index: index.apply_payload(2, payload(stored(range(1, 3))), sequence=0),
    "sizes": lambda index: index.sizes(),
    "maintain": lambda index: index.maintain(),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_let_other_threads_run(index: FlashIndex, no_switches: None, name: str) -> None:
    index.store(1, MANY, MANY)
    ran: list[bool] = []
    # Only the call can release the interpreter's lock after the start of the thread, which waits for the lock.
    go = threading.Lock()
    go.acquire()

    def wait_and_run() -> None:
        with go:
            ran.append(True)

    thread = threading.Thread(target=wait_and_run)
    thread.start()
    end = time.monotonic() + PATIENCE_S
    go.release()
    while not ran and time.monotonic() < end:
        CALLS[name](index)
    assert ran
    thread.join()


def test_changes_and_queries_run_beside_each_other() -> None:
    index = FlashIndex(1)
    instances = range(4)
    failures: list[BaseException] = []
    for instance in instances:
        index.register(instance)
        index.store(instance, CHAIN, CHAIN)

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        return run

    def change(instance: int) -> None:
        for _ in range(300):
            index.store(instance, CHAIN, CHAIN)
            index.remove(instance, CHAIN[32:])
            index.clear(instance)
        index.store(instance, CHAIN, CHAIN)

    def ask() -> None:
        for _ in range(500):
            matches = index.query_hashes(CHAIN, top_k=3)
            assert len(matches) <= 3 and (matches.blocks <= 64).all()
            # A query during the first store of a rank may return its blocks and "cold".
            are_exact = (matches.trust == 0) | (matches.instances == 99)
            assert are_exact.all()

    def come_and_go() -> None:
        for _ in range(200):
            index.register(99)
            index.store(99, CHAIN, CHAIN)
            index.unregister(99)

    work = [lambda instance=instance: change(instance) for instance in instances]
    threads = [threading.Thread(target=guarded(run)) for run in [*work, ask, ask, come_and_go]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    matches = index.query_hashes(CHAIN)
    assert sorted(matches.instances.tolist()) == list(instances)
    assert (matches.blocks == 64).all() and {TRUST[trust] for trust in matches.trust} == {"exact"}
