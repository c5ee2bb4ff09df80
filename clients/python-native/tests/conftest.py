"""Messages as engines publish them."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from flash_index import FlashIndex, Matches
from numpy.typing import NDArray

BLOCK_SIZE = 4
PATIENCE_S = 30.0


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Polls a condition until it holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.01)


def tokens(blocks: range) -> NDArray[np.uint32]:
    """The tokens of blocks by number."""
    return np.array([100 * block + offset for block in blocks for offset in range(BLOCK_SIZE)], dtype=np.uint32)


def stored(blocks: range, block_size: int = BLOCK_SIZE) -> list[Any]:
    """An event that stores blocks as one chain. A block's number is its sequence hash; block 1 starts a sequence."""
    return ["BlockStored", list(blocks), blocks[0] - 1 or None, tokens(blocks).tolist(), block_size, None]


def payload(*events: list[Any], dp_rank: int | None = None) -> bytes:
    """A batch of events."""
    return msgspec.msgpack.encode([1.0, list(events), dp_rank])


def frames(sequence: int, *events: list[Any]) -> list[bytes]:
    """A message of an engine."""
    return [b"kv-events", sequence.to_bytes(8, "big"), payload(*events)]


def rows(matches: Matches) -> list[tuple[int, int, list[int]]]:
    """Instance, rank and blocks by tier of each match, in order of instance and rank."""
    ranks = zip(matches.instances.tolist(), matches.dp_ranks.tolist(), matches.blocks.tolist(), strict=True)
    return sorted(ranks)


@pytest.fixture
def index() -> FlashIndex:
    """An index with instances 1 and 2."""
    index = FlashIndex(BLOCK_SIZE)
    index.register(1)
    index.register(2)
    return index
