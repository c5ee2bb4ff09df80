"""Random changes: answers equal those of a brute-force oracle after every step."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from conftest import rows
from flash_index import TIERS, FlashIndex
from numpy.typing import NDArray

Rank = tuple[int, int]
RANKS: list[Rank] = [(instance, dp_rank) for instance in (1, 2, 3) for dp_rank in (0, 1)]
SEQUENCES, CONTENTS, STEPS = 24, 3, 150


@dataclass
class Held:
    """A block that a rank holds."""

    parent: int | None
    local: int
    copies: list[int] = field(default_factory=lambda: [0] * len(TIERS))


class Oracle:
    """What each rank holds: a map from sequence hash to block."""

    def __init__(self) -> None:
        self.ranks: dict[Rank, dict[int, Held]] = {rank: {} for rank in RANKS}

    def store(self, rank: Rank, tier: int, parent: int | None, blocks: list[tuple[int, int]]) -> None:
        held = self.ranks[rank]
        for sequence, local in blocks:
            known = held.get(sequence)
            if known is None or (known.parent, known.local) != (parent, local):
                known = held[sequence] = Held(parent, local)
            known.copies[tier] += 1
            parent = sequence

    def remove(self, rank: Rank, tier: int, sequences: list[int], all_copies: bool) -> None:
        held = self.ranks[rank]
        for sequence in sequences:
            block = held.get(sequence)
            if block is not None and block.copies[tier] > 0:
                block.copies[tier] = 0 if all_copies else block.copies[tier] - 1
                if not any(block.copies):
                    del held[sequence]

    def depth(self, rank: Rank, query: list[int], tier: int) -> int:
        reached: set[int | None] = {None}
        for depth, local in enumerate(query):
            reached = {
                sequence
                for sequence, block in self.ranks[rank].items()
                if block.local == local and block.parent in reached and any(block.copies[: tier + 1])
            }
            if not reached:
                return depth
        return len(query)

    def rows(self, query: list[int]) -> list[tuple[int, int, list[int]]]:
        depths = [(*rank, [self.depth(rank, query, tier) for tier in range(len(TIERS))]) for rank in RANKS]
        return [row for row in depths if any(row[2])]


def array(hashes: list[int]) -> NDArray[np.uint64]:
    return np.array(hashes, dtype=np.uint64)


@pytest.mark.parametrize("seed", range(12))
def test_answers_equal_the_oracle(seed: int) -> None:
    random = np.random.default_rng(seed)
    index, oracle = FlashIndex(1), Oracle()
    for instance in (1, 2, 3):
        index.register(instance)

    def some() -> list[int]:
        return [int(hash) for hash in random.integers(1, SEQUENCES, random.integers(1, 5))]

    for _ in range(STEPS):
        rank = RANKS[random.integers(len(RANKS))]
        instance, dp_rank = rank
        tier = int(random.integers(len(TIERS)))
        kind = random.random()
        if kind < 0.6:
            # A sequence hash has one content, so equal contents are at many places.
            sequences = some()
            locals = [sequence % CONTENTS for sequence in sequences]
            parent = int(random.integers(1, SEQUENCES)) if random.random() < 0.7 else None
            index.store(instance, array(sequences), array(locals), dp_rank=dp_rank, parent=parent, tier=TIERS[tier])
            oracle.store(rank, tier, parent, list(zip(sequences, locals, strict=True)))
        elif kind < 0.95:
            sequences, all_copies = some(), bool(random.random() < 0.5)
            index.remove(instance, array(sequences), dp_rank=dp_rank, tier=TIERS[tier], all_copies=all_copies)
            oracle.remove(rank, tier, sequences, all_copies)
        else:
            index.clear(instance, dp_rank=dp_rank)
            oracle.ranks[rank].clear()
        while index.maintain():
            pass
        query = [int(hash) for hash in random.integers(0, CONTENTS, 6)]
        expected = oracle.rows(query)
        assert rows(index.query_hashes(array(query))) == expected
        top = index.query_hashes(array(query), top_k=2)
        deepest = sorted(expected, key=lambda row: (-row[2][0], -row[2][3], row[0], row[1]))[:2]
        assert list(zip(top.instances.tolist(), top.dp_ranks.tolist(), strict=True)) == [row[:2] for row in deepest]
    sizes = index.sizes()
    held = {rank: len(blocks) for rank, blocks in oracle.ranks.items()}
    for instance, dp_rank, blocks in zip(sizes.instances, sizes.dp_ranks, sizes.blocks, strict=True):
        assert held[int(instance), int(dp_rank)] == blocks
