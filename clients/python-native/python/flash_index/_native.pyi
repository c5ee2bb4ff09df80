"""The compiled part of `flash_index`.

Arrays are one-dimensional, contiguous numpy arrays of exactly the named type. They are read in place while other
Python threads run, so no thread may change an array during a call that reads it. An array of another type or layout
raises TypeError or ValueError, which say how to convert it. A number out of range raises OverflowError.
"""

from collections.abc import Sequence
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
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

_Tier = Literal["device", "host_pinned", "disk", "external"]
_Trust = Literal["exact", "cold", "recovering", "degraded"]

class FlashIndexError(Exception):
    """A call of an index failed and changed nothing."""

class NotRegistered(FlashIndexError):
    """The instance is not registered."""

class AlreadyRegistered(FlashIndexError):
    """The instance is registered already."""

class LimitReached(FlashIndexError):
    """A limit of the index is reached: it has at most 65,536 ranks."""

@final
class Applied:
    """What a change did, in blocks."""

    @property
    def stored(self) -> int:
        """Blocks that the tier did not hold before."""
    @property
    def duplicate(self) -> int:
        """Blocks that the tier held already and that have more copies now."""
    @property
    def waiting(self) -> int:
        """Of `stored`, blocks whose parent is unknown: they count in no match until it is stored."""
    @property
    def moved(self) -> int:
        """Of `stored`, blocks whose sequence hash the rank used for another block before."""
    @property
    def refused(self) -> int:
        """Stored blocks that a limit refused; their rank is degraded."""
    @property
    def removed(self) -> int:
        """Removed blocks that the tier held; for a clear, all blocks."""
    @property
    def unknown(self) -> int:
        """Blocks to be removed or copied that the rank does not hold."""

@final
class Rejection:
    """Events or messages that were not applied, for one reason."""

    @property
    def reason(self) -> str:
        """Label of the reason, for counters."""
    @property
    def count(self) -> int:
        """Number of events or messages."""
    @property
    def message(self) -> str:
        """Explanation of the first of them."""

@final
class ReplayRequest:
    """Messages to request from an engine."""

    @property
    def attempt(self) -> int:
        """Number of the request, for `FlashIndex.apply_replayed`."""
    @property
    def first(self) -> int:
        """First sequence number."""

@final
class Report:
    """What a message changed."""

    @property
    def messages(self) -> int:
        """Messages that were applied: none while earlier ones are missing and are being replayed."""
    @property
    def applied(self) -> Applied:
        """Changed blocks."""
    @property
    def rejections(self) -> list[Rejection]:
        """What was not applied, one entry for each reason. It degrades the rank, unless the blocks are in a memory
        that no tier stands for (`unknown_medium`)."""
    @property
    def unknown_fields(self) -> list[str]:
        """Fields of events that this release does not know and has ignored, at most 16."""
    @property
    def missed_messages(self) -> int:
        """Messages missing between the last live one and this one."""
    @property
    def lost_messages(self) -> int:
        """Missing messages that are lost for good since the last call."""
    @property
    def duplicates(self) -> int:
        """Messages that were received before, byte for byte, and ignored."""
    @property
    def cleared(self) -> str | None:
        """Why all blocks of the stream's ranks were dropped first, if they were: `engine_restarted`, `epoch_unknown`,
        `too_many_messages_lost` or `history_replayed`."""
    @property
    def replay(self) -> ReplayRequest | None:
        """What to request from the engine now. A later request replaces an earlier one."""

@final
class Matches:
    """The ranks that hold the first block of a query, one in each row. The arrays belong to the caller."""

    @property
    def instances(self) -> NDArray[np.uint64]:
        """Instances, shape (n,)."""
    @property
    def dp_ranks(self) -> NDArray[np.uint32]:
        """Their data-parallel ranks, shape (n,)."""
    @property
    def blocks(self) -> NDArray[np.uint32]:
        """Leading **blocks** of the query that the rank holds in a tier and all faster ones together, shape (n, 4),
        a column for each of `TIERS`. Column 0 is device memory, column 3 is any tier."""
    @property
    def trust(self) -> NDArray[np.uint8]:
        """Trust in the rank as a position in `TRUST`, shape (n,): 0 is exact."""
    @property
    def best(self) -> int | None:
        """The instance with most blocks in device memory, then in any tier, then with the lowest number; None if no
        rank holds the first block."""
    def __len__(self) -> int: ...

@final
class Sizes:
    """Blocks of every rank, one rank in each row, by instance and rank."""

    @property
    def instances(self) -> NDArray[np.uint64]:
        """Instances, shape (n,)."""
    @property
    def dp_ranks(self) -> NDArray[np.uint32]:
        """Their data-parallel ranks, shape (n,)."""
    @property
    def blocks(self) -> NDArray[np.uint64]:
        """Blocks in at least one tier, shape (n,)."""
    @property
    def by_tier(self) -> NDArray[np.uint64]:
        """Blocks in each tier, shape (n, 4), a column for each of `TIERS`."""
    @property
    def waiting(self) -> NDArray[np.uint64]:
        """Of `blocks`, those whose parent is unknown, shape (n,)."""
    def __len__(self) -> int: ...

@final
class FlashIndex:
    """An index of the cached blocks of engines that serve one model.

    Changes come from engines' messages (`apply_frames`), or from the caller (`store`, `copy`, `remove`, `clear`).
    Each rank has one source: the trust of a rank with both is not defined.

    Threads. Every method may be called from any thread, and those that work on blocks let other Python threads run.
    The changes of one instance are applied one call after the other. Pass those of one rank in the order in which
    its engine made them, so from one thread. A query never waits for a change, but for ranks of hybrid models and
    right after a registration; it sees the blocks of a change one after the other. When no change is under way,
    answers are exact for ranks whose trust is `exact`.
    """

    def __new__(cls, block_size: int) -> FlashIndex:
        """An index without instances, for blocks of `block_size` tokens. ValueError if it is 0."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    def register(
        self,
        instance: int,
        *,
        engine: Literal["auto", "vllm", "sglang", "trtllm"] = "auto",
        lora_name: str | None = None,
        removes_last_copy: bool = False,
        replays: bool = False,
        extra_keys: bool = False,
    ) -> None:
        """Registers an instance, which the caller numbers: 0 to 2**64 - 1. Its ranks are known from their first
        message or change.

        `engine` is the format of its messages; `auto` detects it. `lora_name` is the adapter of events that name
        none. With `removes_last_copy`, a removal ends all copies of a block in its tier; most engines publish one
        removal for each copy. With `replays`, the caller requests missing messages from the engine as
        `Report.replay` says. With `extra_keys`, requests to the engine carry keys that its events lack, such as
        SGLang's `extra_key`: its ranks are never exact.

        Raises AlreadyRegistered, LimitReached, or ValueError for an unknown engine.
        """
    def unregister(self, instance: int) -> None:
        """Removes an instance with all of its blocks. No answer has it after the call. Raises NotRegistered."""
    def instances(self) -> NDArray[np.uint64]:
        """The registered instances, ascending, shape (n,)."""
    def store(
        self,
        instance: int,
        sequence_hashes: NDArray[np.uint64],
        local_hashes: NDArray[np.uint64],
        *,
        dp_rank: int = 0,
        parent: int | None = None,
        tier: _Tier = "device",
    ) -> Applied:
        """Stores one copy of each block in a tier of a rank. The blocks follow each other: the first one follows the
        block with the sequence hash `parent`, or starts a sequence.

        `sequence_hashes` are the engine's own ids, each of a block with its whole prefix. `local_hashes` are hashes
        of the blocks' tokens alone (`hash_tokens`). Both have shape (n,). Linear in n. Raises NotRegistered,
        LimitReached, and ValueError if the shapes differ.
        """
    def copy(self, instance: int, sequence_hashes: NDArray[np.uint64], *, tier: _Tier, dp_rank: int = 0) -> Applied:
        """Stores one copy of each block in another tier of a rank that holds them. Linear in the blocks. Raises
        NotRegistered and LimitReached."""
    def remove(
        self,
        instance: int,
        sequence_hashes: NDArray[np.uint64],
        *,
        dp_rank: int = 0,
        tier: _Tier = "device",
        all_copies: bool = False,
    ) -> Applied:
        """Removes one copy of each block, or all copies, from a tier of a rank. Linear in the blocks. Raises
        NotRegistered and LimitReached."""
    def clear(self, instance: int, *, dp_rank: int = 0) -> Applied:
        """Drops all blocks of a rank, in every tier. Its earlier losses no longer count. Raises NotRegistered and
        LimitReached."""
    def apply_frames(self, instance: int, frames: Sequence[bytes], *, dp_rank: int = 0) -> Report:
        """Applies one multipart message of an engine: topic, sequence number and payload, as ZeroMQ delivers them.

        `dp_rank` is the rank of the endpoint that sent it; the message may name another one. A message or an event
        that cannot be used raises nothing: the report says what was rejected and why. Linear in the payload. Raises
        NotRegistered, LimitReached, and FlashIndexError if another endpoint of the instance has the rank.
        """
    def apply_payload(self, instance: int, payload: bytes, *, sequence: int | None, dp_rank: int = 0) -> Report:
        """Applies one message, given as its MessagePack batch and its sequence number. Without numbers lost messages
        are not noticed, so the rank is never exact. Otherwise as `apply_frames`."""
    def apply_replayed(self, instance: int, attempt: int, frames: Sequence[bytes], *, dp_rank: int = 0) -> Report:
        """Applies one message of the reply to a request, or the message that ends it. Replies to earlier attempts
        are ignored. Otherwise as `apply_frames`."""
    def connected(self, instance: int, *, dp_rank: int = 0) -> Report:
        """Handles an established connection: an engine that replays is asked for all messages at once, instead of
        with its first live one."""
    def disconnected(self, instance: int, *, dp_rank: int = 0) -> Report:
        """Handles a lost connection: the engine may restart before the next one, so its ranks are not exact until a
        replay shows that it did not."""
    def tick(self, instance: int, *, dp_rank: int = 0) -> Report:
        """Handles the passing of time. Call it about once a second while a replay is under way: a request without a
        reply is repeated."""
    def query(
        self,
        tokens: NDArray[np.uint32],
        *,
        top_k: int | None = None,
        lora_name: str | None = None,
        cache_salt: str | None = None,
    ) -> Matches:
        """Finds the ranks that hold the first block of a prompt of `tokens`, shape (n,), under an adapter and a
        salt. A last block that is not full does not count.

        With `top_k`, at most that many ranks: the deepest in device memory, then in any tier, then by instance and
        rank, in this order. Without it, all in no particular order. Costs hashing the tokens, and the blocks and
        ranks on the query's path, regardless of the size of the index.
        """
    def query_hashes(self, hashes: NDArray[np.uint64], *, top_k: int | None = None) -> Matches:
        """The same for a prompt given by the local hashes of its blocks, shape (n,)."""
    def sizes(self) -> Sizes:
        """Blocks of every rank. Costs the number of ranks."""
    def trust(self, instance: int, *, dp_rank: int = 0) -> tuple[_Trust, str | None] | None:
        """Trust in a rank, and what is missing unless it is exact or cold; None before its first message or change.
        Waits for a running change of the instance. Raises NotRegistered."""
    def memory_bytes(self) -> int:
        """Bytes that the index takes."""
    def maintain(self) -> bool:
        """Does a bounded part of the work that changes have deferred, and returns whether more is left. A change
        does such a part as well; an idle caller frees memory with it."""

def hash_tokens(
    tokens: NDArray[np.uint32],
    block_size: int,
    *,
    lora_name: str | None = None,
    cache_salt: str | None = None,
) -> NDArray[np.uint64]:
    """Local hashes of all complete blocks of a prompt, shape (len(tokens) // block_size,): the hashes of
    `query_hashes`, and of the service's `/query_by_hash`."""
