"""Types of the answers. Fields that a newer service adds are ignored."""

from typing import Any, Literal

from msgspec import Struct, field

Trust = Literal["exact", "cold", "recovering", "degraded", "approximate"]
"""How far a match can be relied on: see the service's documentation of trust states."""


class InstanceMatch(Struct, frozen=True):
    """The prefix that an instance holds, in **tokens**."""

    longest_matched: int
    """In any tier."""
    gpu: int
    """In device memory."""
    cpu: int
    """In device and host memory."""
    disk: int
    """In device memory, host memory and on disk."""
    trust: Trust
    dp: dict[str, int] = {}
    """In device memory, by data-parallel rank."""
    partial: bool = False
    """The index has evicted blocks of the instance: its match may be too short."""


class Matches(Struct, frozen=True):
    """Answer of a query."""

    scores: dict[str, dict[str, int]]
    """**Tokens** of the prefix in device memory, by instance and data-parallel rank."""
    instances: dict[str, InstanceMatch]
    tree_sizes: dict[str, dict[str, int]] = {}
    """**Blocks** that each rank holds."""
    frequencies: list[int] = []
    """Earlier queries that reached each leading block, if the service counts them."""
    cursor: str | None = None
    """Where a later query can continue the prompt."""
    cursor_tokens: int = 0
    """**Tokens** that the cursor covers."""
    store: Literal["ok", "unavailable"] | None = None
    """Whether a shared store took part."""

    def best(self) -> str | None:
        """The instance with the longest match in any tier, or none if no instance holds a block of the prompt."""
        held = ((match.longest_matched, name) for name, match in self.instances.items() if match.longest_matched > 0)
        return max(held, default=(0, None))[1]


class PodScore(Struct, frozen=True):
    """Score of one pod."""

    score: float
    """Sum of the weights of the prefix's blocks."""
    held_blocks: int
    predicted_blocks: int
    trust: Trust
    partial: bool = False
    """The index has evicted blocks of the pod: its score may be too low."""


class Partial(Struct, frozen=True):
    """From where on nothing is known about a prompt with media."""

    reason: str
    from_block: int | None = None
    from_token: int | None = None


class Scores(Struct, frozen=True):
    """Scores of the pods that hold a block of the prompt."""

    pods: dict[str, PodScore]
    partial: Partial | None = None
    store: Literal["ok", "unavailable"] | None = None


class Load(Struct, frozen=True):
    """Requests in flight of a pod."""

    requests: int
    prefill_blocks: int
    """**Blocks** that are still to be computed."""
    active_blocks: int
    """**Blocks** in use."""


class Candidate(Struct, frozen=True):
    """A pod with its cost, and what the cost depends on."""

    pod: int | str
    cost: float
    score: float
    held_blocks: int
    predicted_blocks: int
    trust: Trust
    ready: bool
    load: Load


class Pick(Candidate, frozen=True, kw_only=True):
    """The picked pod."""

    blocks: int
    """Complete **blocks** of the prompt."""
    weights: dict[str, float]
    temperature: float
    seed: int
    """Repeats the pick."""
    candidates: list[Candidate] | None = None
    """With `detail`: all pods that could be picked, and those that are not ready."""
    partial: Partial | None = None
    store: Literal["ok", "unavailable"] | None = None


class MatchEnd(Struct, frozen=True):
    """Where a match ends, and why."""

    position: int
    """Number of the block, from 0."""
    reason: str
    why: str


class RankExplanation(Struct, frozen=True):
    """The match of one rank."""

    instance_id: int | str
    dp_rank: int
    trust: Trust
    blocks_held: int
    gpu: int
    cpu: int
    disk: int
    longest_matched: int
    ends: list[MatchEnd]
    last_error: str | None = None


class Explanation(Struct, frozen=True):
    """Where each rank's match ends, and why."""

    model_name: str
    tenant_id: str
    block_size: int
    blocks: int
    ranks: list[RankExplanation]
    absent: list[dict[str, Any]] = []


class Readiness(Struct, frozen=True):
    """Whether the service is ready to answer, and what it waits for."""

    ready: bool
    answer: dict[str, Any] = field(default_factory=dict)
    """The answer of `/ready`, with what is missing."""
