"""Arguments of calls: which types they may have, and how wrong ones are refused."""

import asyncio
import ctypes
import json
import re
from array import array
from collections.abc import Iterable
from typing import Any

import pytest
from conftest import BLOCK_SIZE, Engine, Item, tokens

from flash_indexer import ApiError, AsyncClient, Client, calls, local_hashes

LONE = json.loads('"\\ud800"')
PODS: list[Iterable[str]] = [["gpu-1"], ("gpu-1",), {"gpu-1"}, {"gpu-1": 1}.keys(), {"gpu-1": 1}]


def test_pods_may_be_any_iterable(url: str, client: Client, engine: Engine) -> None:
    prompt = tokens(range(1, 11))

    async def ask(pods: Iterable[str]) -> Any:
        async with AsyncClient(url, deadline_s=30) as asks:
            return await asks.score("m", prompt, pods=pods), await asks.pick("m", prompt, pods=iter(["gpu-1"]))

    for pods in (*PODS, iter(["gpu-1"])):
        assert client.score("m", prompt, pods=pods).pods.keys() == {"gpu-1"}, pods
    for pods in (*PODS, iter(["gpu-1"])):
        assert client.pick("m", prompt, pods=pods).pod == "gpu-1", pods
    for pods in (*PODS, iter(["gpu-1"])):
        scores, picked = asyncio.run(ask(pods))
        assert (scores.pods.keys(), picked.pod) == ({"gpu-1"}, "gpu-1"), pods


def test_pods_of_a_text_or_chat_are_a_list_too() -> None:
    for pods in PODS:
        for call in (
            calls.score("m", "hi", {"pods": pods}),
            calls.score_chat({}, {"pods": pods}),
            calls.pick("m", "hi", {"pods": pods}),
        ):
            assert body(call)["pods"] == ["gpu-1"]


@pytest.mark.parametrize("wrong", ["12", b"12", 12])
def test_a_single_pod_is_no_list_of_pods(wrong: Any) -> None:
    for prompt in ("hi", [1]):
        for call in (calls.score, calls.pick):
            with pytest.raises(TypeError, match=re.escape(f"pods is {wrong!r}; give a list of pods")):
                call("m", prompt, {"pods": wrong})


def test_a_lone_surrogate_in_a_body_is_refused_by_the_service(client: Client) -> None:
    for call in (
        lambda: client.score("m", LONE),
        lambda: client.pick("m", [1], lora_name=LONE),
        lambda: client.register("gpu-9", "none", LONE, 16),
    ):
        with pytest.raises(ApiError, match=r"400: .* lone surrogate"):
            call()


def test_a_chat_with_a_lone_surrogate_is_sent_unchanged() -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": f"é{LONE}"}]}
    assert body(calls.tokenize(chat)) == chat
    for call in (calls.score_chat(chat, {}), calls.pick("m", chat, {}), calls.predict("m", "gpu-1", chat, {})):
        assert body(call)["messages"] == chat["messages"]


def test_a_lone_surrogate_in_a_query_string_is_an_error_that_names_the_argument() -> None:
    with Client("http://127.0.0.1:1") as client:
        for argument, call in (
            ("lora_name", lambda: client.query("m", [1], lora_name=LONE)),
            ("cache_salt", lambda: client.conversation("m", cache_salt=LONE).query([1])),
            ("tenant_id", lambda: client.explain("m", [1], tenant_id=LONE)),
            ("pods", lambda: client.score("m", [1], pods=["gpu-1", LONE])),
            ("pod", lambda: client.predict("m", LONE, [1])),
            ("model_name", lambda: client.workers(model_name=LONE)),
            ("model_name", lambda: list(client.dump(model_name=LONE))),
            ("lora_name", lambda: local_hashes([1], 1, lora_name=LONE)),
            ("cache_salt", lambda: local_hashes([1], 1, cache_salt=LONE)),
        ):
            with pytest.raises(ValueError, match=rf"^{argument} is '\\ud800', which has a lone surrogate; give"):
                call()


def test_the_given_model_replaces_that_of_a_chat() -> None:
    chat = {"model": "other", "messages": []}
    for call in (calls.pick("m", chat, {}), calls.predict("m", "gpu-1", chat, {})):
        sent = body(call)
        assert (sent["model_name"], "model" in sent, sent["messages"]) == ("m", False, [])
    assert chat == {"model": "other", "messages": []}
    assert body(calls.score_chat(chat, {}))["model"] == "other"


def test_tokens_in_a_buffer_of_another_form_are_refused_with_the_name_of_the_argument() -> None:
    rows: Any = memoryview(array("I", [1, 2, 3, 4])).cast("B").cast("I", shape=[2, 2])
    swapped = ctypes.c_uint32.__ctype_be__ if array("H", [1]).tobytes()[0] else ctypes.c_uint32.__ctype_le__
    others: list[Any] = [(swapped * 2)(1, 2), (ctypes.py_object * 2)(ctypes.py_object(1), ctypes.py_object(2))]
    with Client("http://127.0.0.1:1") as client:
        for argument, call in (
            ("token_ids", lambda prompt: client.query("m", prompt)),
            ("prompt", lambda prompt: client.pick("m", prompt)),
            ("tokens", lambda prompt: local_hashes(prompt, 1)),
        ):
            with pytest.raises(TypeError, match=f"^{argument} has 2 dimensions; give a list of integers"):
                call(rows)
            for other in others:
                with pytest.raises(TypeError, match=f"^{argument} is .*; give a list of integers"):
                    call(other)


def test_hashes_may_be_any_integers(client: Client, engine: Engine) -> None:
    hashes = local_hashes(tokens(range(1, 11)), BLOCK_SIZE)
    expected = client.query_by_hash("m", hashes)
    assert expected.best() == "gpu-1"
    signed = [value - (1 << 64) if value >> 63 else value for value in hashes]
    items: list[Any] = [Item(value) for value in hashes]
    for same in (array("Q", hashes), memoryview(array("Q", hashes)), signed, iter(hashes), items):
        assert client.query_by_hash("m", same) == expected


@pytest.mark.parametrize("wrong", ["12", b"12", bytearray(b"12"), ["12"], [1.5], 5, None])
def test_hashes_that_are_no_integers_are_refused_with_the_name_of_the_argument(wrong: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"block_hashes is {wrong!r}; give a list of integers")):
        calls.query_by_hash("m", wrong, {})


def body(call: calls.Call[Any]) -> Any:
    assert call.content is not None
    return json.loads(call.content)
