"""The calls that the tests of all clients make, and what the service answers."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from flash_indexer import ApiError, Client
from flash_indexer.calls import QueryOptions

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "testdata/calls.json").read_text(encoding="utf-8"))
MODEL: str = VECTORS["model"]


def test_calls_answer_as_the_shared_vectors_say(client: Client) -> None:
    steps = VECTORS["steps"]
    assert len(steps) >= 19
    cursor = None
    for step in steps:
        refused = step.get("refused")
        with nullcontext() if refused is None else pytest.raises(ApiError) as error:
            cursor = make(client, step, cursor)
        assert refused is None or (error is not None and error.value.status == refused), step


def make(client: Client, step: dict[str, Any], cursor: str | None) -> str | None:
    """Makes a call, checks its answer, and returns the cursor of the last answer to a query."""
    tokens = [token for first, count in step.get("prompt", []) for token in range(first, first + count)]
    match step["call"]:
        case "register":
            client.register(step["instance"], "none", MODEL, step.get("block_size", VECTORS["block_size"]))
        case "unregister":
            client.unregister(step["instance"], MODEL)
        case "predict":
            assert client.predict(MODEL, step["instance"], tokens)["blocks"] == step["blocks"], step
        case "score":
            pods = client.score(MODEL, tokens, **({"pods": step["pods"]} if "pods" in step else {})).pods
            assert {name: pod.held_blocks for name, pod in pods.items()} == step["held"], step
        case "query":
            options: QueryOptions = {}
            if "lora_name" in step:
                options["lora_name"] = step["lora_name"]
            if "cache_salt" in step:
                options["cache_salt"] = step["cache_salt"]
            if step.get("after_last"):
                assert cursor is not None
                options["after"] = cursor
            answer = client.query(MODEL, tokens, **options)
            matched = {name: match.longest_matched for name, match in answer.instances.items()}
            assert (matched, answer.cursor_tokens) == (step["matched"], step["cursor_tokens"]), step
            return answer.cursor
        case other:
            pytest.fail(f"unknown call {other}")
    return cursor
