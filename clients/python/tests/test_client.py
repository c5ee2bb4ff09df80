"""The clients against a real service."""

import asyncio
from array import array
from typing import Any

import pytest
from conftest import BLOCK_SIZE, Engine, Item, tokens

from flash_indexer import ApiError, AsyncClient, Client, UnknownCursor, local_hashes
from flash_indexer.calls import PromptOptions, UnregisterOptions

HELD = 100 * BLOCK_SIZE


def test_a_query_by_tokens_buffers_or_hashes_has_the_same_matches(client: Client, engine: Engine) -> None:
    prompt = tokens(range(1, 51)) + tokens(range(900, 905))
    expected = client.query("m", prompt)
    assert expected.scores == {"gpu-1": {"0": 200}}
    assert expected.instances["gpu-1"].longest_matched == 200
    assert expected.instances["gpu-1"].trust == "exact"
    assert expected.tree_sizes == {"gpu-1": {"0": 100}}
    assert expected.best() == "gpu-1"
    items: list[Any] = [Item(token) for token in prompt]
    assert client.query("m", items) == expected
    assert client.pick("m", items).held_blocks == 50
    for same in (array("I", prompt), memoryview(array("I", prompt)), array("q", prompt), tuple(prompt)):
        assert client.query("m", same) == expected
    by_hash = client.query_by_hash("m", local_hashes(prompt, BLOCK_SIZE))
    assert by_hash.scores == expected.scores
    assert client.query("m", tokens(range(7, 9))).best() is None
    assert client.query("m", prompt, lora_name="other").best() is None
    assert client.query("m", prompt, min_score=201).scores == {}


def test_an_option_that_is_none_counts_as_absent(client: Client, engine: Engine) -> None:
    prompt = tokens(range(1, 11))
    names: PromptOptions = {"tenant_id": None, "lora_name": None, "cache_salt": None}
    rank: UnregisterOptions = {"tenant_id": None, "dp_rank": None}
    held = client.query("m", prompt)
    assert held.best() == "gpu-1"
    assert client.query("m", prompt, **names, top_k=None, min_score=None, after=None) == held
    hashes = local_hashes(prompt, BLOCK_SIZE)
    assert client.query_by_hash("m", hashes, tenant_id=None, top_k=None, min_score=None, after=None) == (
        client.query_by_hash("m", hashes)
    )
    assert client.conversation("m", **names).query(prompt) == held
    scores = client.score("m", prompt, **names, pods=None, top_k=None, truncate_prompt_tokens=None)
    assert scores.pods["gpu-1"].held_blocks == 10
    assert client.explain("m", prompt, **names, instance_id=None).ranks[0].gpu == 40
    picked = client.pick("m", prompt, **names, pods=None, request_id=None, pick_temperature=None, detail=None)
    assert picked.held_blocks == 10
    assert client.predict("m", "gpu-1", prompt, **names, ttl_ms=None, request_id=None)["blocks"] == 10
    client.register("gpu-9", "none", "m", BLOCK_SIZE, **rank)
    client.unregister("gpu-9", "m", **rank)


def test_a_conversation_sends_only_what_is_new(client: Client, engine: Engine) -> None:
    turns = client.conversation("m")
    for blocks in (50, 70, 100, 120):
        prompt = tokens(range(1, blocks + 1))
        whole = client.query("m", prompt)
        assert turns.query(prompt).scores == whole.scores
        assert turns.covered_tokens == whole.cursor_tokens
    assert turns.covered_tokens == 96 * BLOCK_SIZE
    other = tokens(range(1, 40)) + [7] * 300
    assert turns.query(other).scores == {"gpu-1": {"0": 39 * BLOCK_SIZE}}


def test_a_cursor_that_is_unknown_by_now_costs_a_second_request(client: Client) -> None:
    engine = Engine(client, "gpu-2")
    engine.store(range(1, 101))
    turns = client.conversation("m")
    prompt = tokens(range(1, 101))
    cursor = turns.query(prompt).cursor
    assert cursor is not None
    client.unregister("gpu-2", "m")
    engine.close()
    engine = Engine(client, "gpu-3")
    with pytest.raises(UnknownCursor):
        client.query("m", prompt[96 * BLOCK_SIZE :], after=cursor)
    assert turns.query(prompt).scores == {"gpu-3": {"0": 0}}
    client.unregister("gpu-3", "m")
    engine.close()


def test_scores_count_predictions(client: Client, engine: Engine) -> None:
    prompt = tokens(range(1, 11)) + tokens(range(500, 510))
    before = client.score("m", prompt)
    assert before.pods["gpu-1"].held_blocks == 10
    assert client.predict("m", "gpu-1", prompt)["status"] == "ok"
    after = client.score("m", prompt, pods=["gpu-1"])
    assert (after.pods["gpu-1"].held_blocks, after.pods["gpu-1"].predicted_blocks) == (10, 10)
    assert client.score("m", prompt, pods=["another"]).pods == {}


def test_a_pick_counts_what_is_held_and_in_flight(client: Client, engine: Engine) -> None:
    engine.store(range(1, 101))
    prompt = tokens(range(1, 11))
    picked = client.pick("m", prompt, request_id="r1", pick_seed=7, detail=True)
    assert (picked.pod, picked.held_blocks, picked.blocks, picked.seed) == ("gpu-1", 10, 10, 7)
    assert picked.candidates is not None and picked.load.requests == 0
    again = client.pick("m", prompt)
    assert (again.load.requests, again.cost > picked.cost) == (1, True)
    client.done("m", "r1", phase="prefill")
    with pytest.raises(ApiError) as raised:
        client.done("m", "r1", prompt_tokens=8)
    assert raised.value.status == 422
    client.done("m", "r1", prompt_tokens=8, cached_tokens=4)
    assert client.pick("m", prompt).load.requests == 0


def test_an_explanation_says_where_a_match_ends(client: Client, engine: Engine) -> None:
    explanation = client.explain("m", tokens(range(1, 31)) + tokens(range(800, 802)), instance_id="gpu-1")
    (rank,) = explanation.ranks
    assert rank.gpu == 30 * BLOCK_SIZE
    assert (rank.ends[0].position, rank.ends[0].reason) == (30, "never_seen")


def test_a_dump_has_every_block_and_its_last_line(client: Client, engine: Engine) -> None:
    lines = list(client.dump(model_name="m"))
    stored = [line["event"]["data"]["stored"]["blocks"] for line in lines if "event" in line]
    assert sum(map(len, stored)) == 100
    assert "end" in lines[-1]


def test_a_refused_request_says_why(client: Client, engine: Engine) -> None:
    with pytest.raises(ApiError, match="has blocks of 4 tokens, not 5") as refused:
        client.register("gpu-1", "tcp://127.0.0.1:1", "m", BLOCK_SIZE + 1)
    assert refused.value.status == 409
    with pytest.raises(ValueError, match="not in 0 to 2"):
        client.query("m", [-1])
    with pytest.raises(ApiError) as refused:
        client.score("m", "a text")
    assert refused.value.status == 501, "no tokenizer is configured"


def test_readiness(client: Client) -> None:
    assert client.ready().ready


def test_the_async_client_answers_as_the_other_one(url: str, client: Client, engine: Engine) -> None:
    prompt = tokens(range(1, 101))

    async def ask() -> list[Any]:
        async with AsyncClient(url, deadline_s=30) as asks:
            turns = asks.conversation("m")
            return [
                await asks.query("m", prompt),
                await turns.query(prompt),
                await turns.query(prompt),
                await asks.score("m", prompt),
                await asks.explain("m", prompt),
                (await asks.ready()).ready,
                [line async for line in asks.dump()][-1].keys(),
            ]

    matches, first, again, scores, explanation, ready, end = asyncio.run(ask())
    assert matches == first == client.query("m", prompt)
    assert again.scores == first.scores
    assert scores == client.score("m", prompt)
    assert explanation.ranks[0].gpu == HELD
    assert ready and "end" in end
