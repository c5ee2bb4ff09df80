"""Client of Flash Indexer.

>>> from flash_indexer import Client
>>> with Client("http://127.0.0.1:8090") as client:             # doctest: +SKIP
...     matches = client.query("llama-3-8b", tokens)
...     matches.instances["gpu-1"].longest_matched
48

| module | role |
|---|---|
| `client` | `Client` and `AsyncClient`: connections, deadlines, retries |
| `conversation` | turns of a session, of which only new tokens are sent |
| `calls` | requests and the decoding of their answers, without I/O |
| `models` | types of the answers |
| `retry` | attempts before a deadline |
| `errors` | what a call raises |
| `hashing` | local hashes of blocks, for `query_by_hash` |
"""

from .client import AsyncClient, Client
from .conversation import AsyncConversation, Conversation
from .errors import (
    ApiError,
    ConnectionFailed,
    DeadlineExceeded,
    DumpCutOff,
    FlashIndexerError,
    InvalidToken,
    UnexpectedAnswer,
    UnknownCursor,
)
from .hashing import local_hashes
from .models import Candidate, Explanation, InstanceMatch, Load, Matches, Partial, Pick, PodScore, Readiness, Scores

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncConversation",
    "Candidate",
    "Client",
    "ConnectionFailed",
    "Conversation",
    "DeadlineExceeded",
    "DumpCutOff",
    "Explanation",
    "FlashIndexerError",
    "InstanceMatch",
    "InvalidToken",
    "Load",
    "Matches",
    "Partial",
    "Pick",
    "PodScore",
    "Readiness",
    "Scores",
    "UnexpectedAnswer",
    "UnknownCursor",
    "local_hashes",
]
