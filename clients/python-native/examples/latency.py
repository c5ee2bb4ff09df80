"""Latency of a query inside the process.

    python latency.py                    # 8,192 tokens, 4 engines that hold the whole prompt
    python latency.py --engines 500

Every engine holds the whole prompt. The first row queries it again and again; the prompts of the second
row differ in their last block.
"""

import argparse
import statistics
import time

import numpy as np
from flash_index import FlashIndex, hash_tokens
from numpy.typing import NDArray

BLOCK_SIZE = 16


def microseconds(index: FlashIndex, prompts: list[NDArray[np.uint32]]) -> list[float]:
    """Time of each query, in microseconds."""
    times = []
    for prompt in prompts:
        start = time.perf_counter_ns()
        index.query(prompt)
        times.append((time.perf_counter_ns() - start) / 1_000)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8_192)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--queries", type=int, default=20_000)
    arguments = parser.parse_args()
    random = np.random.default_rng(1)
    index = FlashIndex(BLOCK_SIZE)
    prompt = random.integers(0, 128_000, arguments.tokens, dtype=np.uint32)
    hashes = hash_tokens(prompt, BLOCK_SIZE)
    for engine in range(arguments.engines):
        index.register(engine)
        index.store(engine, np.arange(len(hashes), dtype=np.uint64) + 1, hashes)
    assert (index.query(prompt).blocks == len(hashes)).all()
    others = []
    for _ in range(256):
        other = prompt.copy()
        other[-BLOCK_SIZE:] = random.integers(0, 128_000, BLOCK_SIZE, dtype=np.uint32)
        others.append(other)
    rounds = arguments.queries // len(others)
    for name, prompts in (("the same prompt", [prompt] * len(others)), ("other prompts", others)):
        times = [each for _ in range(rounds) for each in microseconds(index, prompts)]
        p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
        print(f"{name}: {arguments.tokens} tokens, {arguments.engines} engines: p50 {p50:.1f} µs, p99 {p99:.1f} µs")


if __name__ == "__main__":
    main()
