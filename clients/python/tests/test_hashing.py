"""Local hashes against the vectors of all clients, some of which the service's tests hold as well."""

import json
from pathlib import Path
from typing import Any

import pytest

from flash_indexer import local_hashes

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "testdata/local-hashes.json").read_text(encoding="utf-8")
)["cases"]


def test_local_hashes_match_the_shared_vectors() -> None:
    assert len(VECTORS) >= 40
    for case in VECTORS:
        tokens = [(case["first_token"] + i * case["step"]) % 2**32 for i in range(case["tokens"])]
        hashes = local_hashes(tokens, case["block_size"], lora_name=case["lora_name"], cache_salt=case["cache_salt"])
        assert [str(value) for value in hashes] == case["hashes"], case


def test_local_hashes_match_the_contract() -> None:
    assert local_hashes(range(1, 15), 4) == [14643705804678351452, 16777012769546811212, 483935686894639516]


def test_variants_differ_and_empty_names_count_as_absent() -> None:
    plain = local_hashes(range(1, 5), 4)
    assert local_hashes(range(1, 5), 4, lora_name="", cache_salt="") == plain
    variants = [plain, local_hashes(range(1, 5), 4, lora_name="a"), local_hashes(range(1, 5), 4, cache_salt="a")]
    assert len({hashes[0] for hashes in variants}) == 3


def test_bad_tokens_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        local_hashes([1], 0)
    text: Any = "16"
    with pytest.raises(TypeError, match="block_size is '16'; give a number of tokens"):
        local_hashes([1], text)
    with pytest.raises(ValueError, match="not in 0 to 2"):
        local_hashes([1 << 32], 1)
