"""Arrays of callers, and arrays of answers."""

from typing import Any

import numpy as np
import pytest
from conftest import tokens
from flash_index import TIERS, FlashIndex, hash_tokens

HASHES = np.array([1, 2, 3], dtype=np.uint64)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ([1, 2, 3], TypeError, "got list; pass numpy.ascontiguousarray"),
        (np.array([1, 2]), TypeError, "got an array of int64 with 1 dimensions"),
        (np.array([[1, 2]], dtype=np.uint32), TypeError, "got an array of uint32 with 2 dimensions"),
        (np.array([1, 2], dtype=">u4"), TypeError, "got an array of >u4"),
        (np.arange(8, dtype=np.uint32)[::2], ValueError, "the array is not contiguous; pass numpy.ascontiguousarray"),
        (np.arange(8, dtype=np.uint32)[::-1], ValueError, "not contiguous"),
        (np.frombuffer(bytes(9), dtype=np.uint8)[1:].view(np.uint32), ValueError, "failed to read tokens"),
    ],
)
def test_arrays_of_another_type_or_layout_are_refused(
    index: FlashIndex, wrong: Any, error: type[Exception], text: str
) -> None:
    for call in (index.query, lambda array: hash_tokens(array, 4)):
        with pytest.raises(error, match=text.replace("(", r"\(")):
            call(wrong)


def test_hashes_of_another_type_or_number_are_refused(index: FlashIndex) -> None:
    signed: Any = np.array([1, 2])
    with pytest.raises(TypeError, match="expected a one-dimensional numpy array of uint64"):
        index.query_hashes(signed)
    with pytest.raises(TypeError, match="failed to read local_hashes"):
        index.store(1, HASHES, signed)
    with pytest.raises(TypeError, match="failed to read sequence_hashes"):
        index.remove(1, signed)
    with pytest.raises(ValueError, match="there are 3 sequence_hashes and 2 local_hashes"):
        index.store(1, HASHES, HASHES[:2])


def test_slices_and_read_only_arrays_are_read_in_place(index: FlashIndex) -> None:
    prompt = tokens(range(1, 9))
    prompt.flags.writeable = False
    index.store(1, HASHES, hash_tokens(prompt[4:16], 4))
    assert index.query(prompt[4:]).blocks.tolist() == [[3, 3, 3, 3]]
    assert len(index.query(prompt)) == 0
    assert len(index.query(prompt[:0])) == 0


def test_answers_have_a_row_for_each_rank_and_a_column_for_each_tier(index: FlashIndex) -> None:
    index.store(1, HASHES, HASHES)
    index.store(2, HASHES[:2], HASHES[:2], dp_rank=3, tier="host_pinned")
    matches = index.query_hashes(HASHES, top_k=5)
    assert matches.instances.dtype == np.uint64 and matches.instances.tolist() == [1, 2]
    assert matches.dp_ranks.dtype == np.uint32 and matches.dp_ranks.tolist() == [0, 3]
    assert matches.blocks.dtype == np.uint32 and matches.blocks.tolist() == [[3, 3, 3, 3], [0, 2, 2, 2]]
    assert matches.blocks.shape == (2, len(TIERS)) and matches.blocks.flags.writeable
    assert matches.trust.dtype == np.uint8 and matches.trust.tolist() == [0, 0]
    assert (matches.best, len(matches)) == (1, 2)
    empty = index.query_hashes(np.array([9], dtype=np.uint64))
    assert (empty.best, len(empty), empty.blocks.shape) == (None, 0, (0, 4))


def test_top_k_selects_the_deepest_in_order(index: FlashIndex) -> None:
    for instance in range(3, 20):
        index.register(instance)
        index.store(instance, HASHES[: instance % 3 + 1], HASHES[: instance % 3 + 1])
    assert index.query_hashes(HASHES, top_k=3).instances.tolist() == [5, 8, 11]
    assert len(index.query_hashes(HASHES)) == 17
    assert len(index.query_hashes(HASHES, top_k=0)) == 0
    with pytest.raises(OverflowError):
        index.query_hashes(HASHES, top_k=-1)


def test_answers_live_longer_than_the_index() -> None:
    index = FlashIndex(4)
    index.register(1)
    index.store(1, HASHES, HASHES)
    blocks = index.query_hashes(HASHES).blocks
    del index
    assert blocks.tolist() == [[3, 3, 3, 3]]


def test_sizes_have_every_rank(index: FlashIndex) -> None:
    index.store(2, HASHES, HASHES, dp_rank=1)
    index.store(1, HASHES[2:], HASHES[2:], parent=77)
    index.copy(2, HASHES[:2], dp_rank=1, tier="disk")
    sizes = index.sizes()
    assert (sizes.instances.tolist(), sizes.dp_ranks.tolist(), len(sizes)) == ([1, 2], [0, 1], 2)
    assert (sizes.blocks.tolist(), sizes.waiting.tolist()) == ([1, 3], [1, 0])
    assert sizes.by_tier.tolist() == [[1, 0, 0, 0], [3, 0, 2, 0]]
    assert index.memory_bytes() > 0
    with pytest.raises(ValueError, match="use one of device, host_pinned, disk, external"):
        index.copy(2, HASHES, tier="tape")  # type: ignore[arg-type]
