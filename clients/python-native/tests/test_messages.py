"""Messages of engines: what they change, what is rejected, what is missing."""

from typing import Any

import numpy as np
import pytest
from conftest import BLOCK_SIZE, frames, payload, rows, stored, tokens
from flash_index import AlreadyRegistered, FlashIndex, FlashIndexError, NotRegistered

PROMPT = tokens(range(1, 20))


def test_messages_change_the_index(index: FlashIndex) -> None:
    report = index.apply_frames(1, frames(0, stored(range(1, 6))))
    assert (report.messages, report.applied.stored, report.rejections) == (1, 5, [])
    assert rows(index.query(PROMPT)) == [(1, 0, [5, 5, 5, 5])]
    removed = ["BlockRemoved", [4, 5], None]
    assert index.apply_frames(1, frames(1, removed)).applied.removed == 2
    assert index.query(PROMPT).blocks.tolist() == [[3, 3, 3, 3]]
    assert index.trust(1) == ("exact", None)
    assert index.apply_frames(1, frames(2, ["AllBlocksCleared"])).applied.removed == 3
    assert index.query(PROMPT).best is None


def test_adapters_and_salts_keep_blocks_apart(index: FlashIndex) -> None:
    event = stored(range(1, 3))
    index.apply_payload(1, payload([*event, None, "adapter-a"]), sequence=0)
    assert index.query(PROMPT).best is None
    assert index.query(PROMPT, lora_name="adapter-a").best == 1
    assert index.query(PROMPT, lora_name="adapter-a", cache_salt="s").best is None


def test_a_batch_names_its_rank(index: FlashIndex) -> None:
    index.apply_payload(1, payload(stored(range(1, 3)), dp_rank=6), sequence=0)
    assert rows(index.query(PROMPT)) == [(1, 6, [2, 2, 2, 2])]


def test_rejections_say_what_and_why(index: FlashIndex) -> None:
    wrong_size: list[Any] = ["BlockStored", [1], None, list(range(8)), 8, None]
    report = index.apply_frames(1, frames(0, ["Unheard"], wrong_size, wrong_size, stored(range(1, 3))))
    assert [(rejection.reason, rejection.count) for rejection in report.rejections] == [
        ("unknown_event_type", 1),
        ("block_size_mismatch", 2),
    ]
    assert "register it with block_size 8" in report.rejections[1].message
    assert report.applied.stored == 2
    trust = index.trust(1)
    assert trust is not None and trust[0] == "degraded" and trust[1] is not None and "Unheard" in trust[1]
    assert index.query(PROMPT).trust.tolist() == [3]
    assert index.apply_frames(1, [b"topic", b"short", b""]).rejections[0].reason == "bad_frames"
    assert index.apply_payload(1, b"\xc1", sequence=1).rejections[0].reason == "malformed_batch"


def test_a_gap_degrades_until_a_clear(index: FlashIndex) -> None:
    index.apply_frames(1, frames(0, stored(range(1, 3))))
    report = index.apply_frames(1, frames(4, stored(range(3, 5))))
    assert (report.missed_messages, report.lost_messages) == (3, 3)
    assert index.trust(1) == ("degraded", "3 messages were lost before number 4")
    index.apply_frames(1, frames(5, ["AllBlocksCleared"]))
    assert index.trust(1) == ("exact", None)


def test_an_engine_whose_events_lack_hash_inputs_is_never_exact(index: FlashIndex) -> None:
    index.register(4, engine="sglang", extra_keys=True)
    index.apply_frames(4, frames(0, stored(range(1, 3))))
    trust = index.trust(4)
    assert trust is not None and trust[1] is not None and "extra_keys" in trust[1]


def test_missing_messages_are_requested(index: FlashIndex) -> None:
    index.register(3, engine="vllm", replays=True)
    request = index.connected(3).replay
    assert request is not None and request.first == 0
    assert index.apply_frames(3, frames(1, stored(range(3, 5)))).messages == 0
    assert index.trust(3) == ("recovering", "missing messages are being replayed")
    assert index.tick(3).replay is None
    reply = [b"", (0).to_bytes(8, "big"), payload(stored(range(1, 3)))]
    assert index.apply_replayed(3, request.attempt + 1, reply).messages == 0, "not the request's reply"
    assert index.apply_replayed(3, request.attempt, reply).messages == 2
    assert (index.trust(3), index.query(PROMPT).best) == (("exact", None), 3)
    index.disconnected(3)
    trust = index.trust(3)
    assert trust is not None and trust[0] == "degraded"


def test_registrations(index: FlashIndex) -> None:
    index.apply_frames(1, frames(0, stored(range(1, 3))))
    index.register(2**64 - 1)
    assert index.instances().tolist() == [1, 2, 2**64 - 1]
    with pytest.raises(AlreadyRegistered, match="unregister it first"):
        index.register(1)
    index.unregister(1)
    assert len(index.query(PROMPT)) == 0
    for call in (
        lambda: index.apply_frames(1, frames(1, stored(range(3, 5)))),
        lambda: index.clear(1),
        lambda: index.trust(1),
        lambda: index.unregister(1),
    ):
        with pytest.raises(NotRegistered, match="register it first") as raised:
            call()
        assert isinstance(raised.value, FlashIndexError)
    assert index.trust(2) is None
    with pytest.raises(OverflowError):
        index.register(-1)
    with pytest.raises(ValueError, match="use auto, vllm, sglang or trtllm"):
        index.register(5, engine="ollama")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="block_size"):
        FlashIndex(0)
    assert (index.block_size, repr(index)) == (BLOCK_SIZE, "FlashIndex(block_size=4) with 2 instances")


def test_frames_must_be_bytes(index: FlashIndex) -> None:
    message: Any = [np.zeros(1)]
    with pytest.raises(TypeError):
        index.apply_frames(1, message)
    assert index.trust(1) is None, "nothing was applied"
