"""Flash Indexer inside a Python process: which LLM engines hold the longest prefix of a prompt.

    index = FlashIndex(block_size=16)
    index.register(1)
    index.apply_frames(1, socket.recv_multipart())   # one message of an engine, as ZeroMQ delivers it
    index.query(tokens).best                         # the instance that holds most of the prompt

`_native.pyi` documents every call.
"""

from typing import Final

from ._native import (
    AlreadyRegistered,
    Applied,
    FlashIndex,
    FlashIndexError,
    LimitReached,
    Matches,
    NotRegistered,
    Rejection,
    ReplayRequest,
    Report,
    Sizes,
    hash_tokens,
)

TIERS: Final = ("device", "host_pinned", "disk", "external")
"""Names of the tiers, in the order of the columns of `Matches.blocks` and `Sizes.by_tier`: fastest first."""

TRUST: Final = ("exact", "cold", "recovering", "degraded")
"""Names of the trust states, in the order of the values of `Matches.trust`: most reliable first."""

__all__ = [
    "TIERS",
    "TRUST",
    "AlreadyRegistered",
    "Applied",
    "FlashIndex",
    "FlashIndexError",
    "LimitReached",
    "Matches",
    "NotRegistered",
    "Rejection",
    "ReplayRequest",
    "Report",
    "Sizes",
    "hash_tokens",
]
