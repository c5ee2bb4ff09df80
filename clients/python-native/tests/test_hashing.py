"""Local hashes against the vectors of all clients."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flash_index import hash_tokens

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "testdata/local-hashes.json").read_text(encoding="utf-8")
)["cases"]


def test_local_hashes_match_the_shared_vectors() -> None:
    assert len(VECTORS) >= 40
    for case in VECTORS:
        numbers = [(case["first_token"] + i * case["step"]) % 2**32 for i in range(case["tokens"])]
        hashes = hash_tokens(
            np.array(numbers, dtype=np.uint32),
            case["block_size"],
            lora_name=case["lora_name"],
            cache_salt=case["cache_salt"],
        )
        assert hashes.dtype == np.uint64
        assert [str(value) for value in hashes] == case["hashes"], case


def test_a_block_size_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="pass the engines' tokens per block"):
        hash_tokens(np.array([1], dtype=np.uint32), 0)
