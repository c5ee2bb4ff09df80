//! An index divided into shards, which threads change at the same time.

use std::sync::Arc;

use crate::cursor::PrefixCursor;
use crate::{
    AppliedChanges, BlockEvent, DeepestMatches, Follower, HeldBlock, HeldReading, LocalHash, MatchScores, PerTier,
    RankMatch, RankOrder, RankSize, ReadingProgress, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank,
};

/// Several indexes of one design, each with the ranks of some of the workers.
///
/// Workers of different shards are changed at the same time without waiting for each other. A query asks every shard,
/// one after the other. Shards share nothing: a prefix that ranks of several shards hold is stored in each of them. All
/// ranks of a worker are in one shard ([`shard_of`]).
///
/// # Consistency
///
/// That of the design, for each shard separately: a query may see an event of one worker and not yet an earlier one of a
/// worker in another shard.
#[derive(Debug)]
pub struct ShardedIndex<I> {
    shards: Vec<I>,
}

/// Shard of a worker, out of `shards`. Consecutive ids are spread evenly.
#[must_use]
pub fn shard_of(worker: WorkerId, shards: usize) -> usize {
    // The high half of a multiplicative hash, scaled to the number of shards.
    let hash = worker.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (hash as usize * shards.max(1)) >> 32
}

impl<I: SharedIndex> ShardedIndex<I> {
    /// Creates an index of `count` shards, at least one.
    #[must_use]
    pub fn new(count: usize, shard: impl FnMut() -> I) -> Self {
        Self { shards: std::iter::repeat_with(shard).take(count.max(1)).collect() }
    }

    fn shard(&self, worker: WorkerId) -> &I {
        &self.shards[shard_of(worker, self.shards.len())]
    }
}

impl<I: SharedIndex> SharedIndex for ShardedIndex<I> {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        self.shard(rank.worker).apply(rank, event)
    }

    fn prefetch(&self, rank: WorkerRank, event: &BlockEvent) {
        self.shard(rank.worker).prefetch(rank, event);
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let mut shards = self.shards.iter().map(|shard| shard.find(query));
        let mut scores = shards.next().unwrap_or_default();
        shards.for_each(|further| scores.ranks.extend(further.ranks));
        scores
    }

    fn find_deepest(&self, query: &[LocalHash], count: usize, order: &Arc<RankOrder>) -> DeepestMatches {
        let found = self.shards.iter().map(|shard| shard.find_deepest(query, count, order));
        let mut longest = 0;
        let ranks = found.flat_map(|found| {
            longest = found.longest.max(longest);
            found.ranks
        });
        let scores = MatchScores { ranks: ranks.collect() };
        DeepestMatches { longest, ..DeepestMatches::of(scores, count, order) }
    }

    fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        let mut tiers = vec![PerTier::default(); found.len()];
        let shard_of_match = |found: &RankMatch| shard_of(found.rank.worker, self.shards.len());
        for (number, shard) in self.shards.iter().enumerate() {
            let at: Vec<usize> = (0..found.len()).filter(|&at| shard_of_match(&found[at]) == number).collect();
            let matches: Vec<RankMatch> = at.iter().map(|&at| found[at]).collect();
            for (at, counted) in at.into_iter().zip(shard.fastest_tiers(query, &matches)) {
                tiers[at] = counted;
            }
        }
        tiers
    }

    fn prefix(&self, cursor: PrefixCursor) -> Option<Vec<LocalHash>> {
        self.shards.iter().find_map(|shard| shard.prefix(cursor))
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.shards.iter().flat_map(SharedIndex::ranks).collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.shard(rank.worker).held(rank)
    }

    fn copies(&self, rank: WorkerRank, block: SequenceHash) -> PerTier<u32> {
        self.shard(rank.worker).copies(rank, block)
    }

    fn find_block(&self, sequence: SequenceHash) -> Option<HeldBlock> {
        self.shards.iter().find_map(|shard| shard.find_block(sequence))
    }

    fn held_along(&self, rank: WorkerRank, query: &[LocalHash]) -> Vec<Option<Tier>> {
        self.shard(rank.worker).held_along(rank, query)
    }

    fn sequence_along(&self, rank: WorkerRank, prefix: &[LocalHash]) -> Option<SequenceHash> {
        self.shard(rank.worker).sequence_along(rank, prefix)
    }

    fn waiting_after(&self, rank: WorkerRank, parent: SequenceHash, query: &[LocalHash]) -> Vec<Follower> {
        self.shard(rank.worker).waiting_after(rank, parent, query)
    }

    fn read_held(&self, reading: &mut HeldReading, blocks_max: usize) -> ReadingProgress {
        self.shard(reading.rank().worker).read_held(reading, blocks_max)
    }

    fn clear_rank(&self, rank: WorkerRank) {
        self.shard(rank.worker).clear_rank(rank);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.shard(rank.worker).size(rank)
    }

    fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
        self.shards.iter().flat_map(SharedIndex::sizes).collect()
    }

    fn memory_bytes(&self) -> Option<usize> {
        self.shards.iter().map(SharedIndex::memory_bytes).sum()
    }

    fn maintain(&self) -> bool {
        (0..self.shards.len()).any(|shard| self.maintain_shard(shard))
    }

    fn shards(&self) -> usize {
        self.shards.len()
    }

    fn maintain_shard(&self, shard: usize) -> bool {
        self.shards.get(shard).is_some_and(SharedIndex::maintain)
    }

    fn twins_skipped(&self) -> u64 {
        self.shards.iter().map(SharedIndex::twins_skipped).sum()
    }

    fn abandon(&self) {
        self.shards.iter().for_each(SharedIndex::abandon);
    }

    fn remove_worker(&self, worker: WorkerId) {
        self.shard(worker).remove_worker(worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_spread_evenly_over_the_shards() {
        for (shards, stride) in [(1, 1), (2, 2), (3, 1), (4, 2), (4, 4), (8, 3)] {
            let mut counts = vec![0_usize; shards];
            (1..=1_000).for_each(|number| counts[shard_of(WorkerId(number * stride), shards)] += 1);
            let even = 1_000 / shards;
            assert!(counts.iter().all(|count| count.abs_diff(even) <= even / 10), "{counts:?} of {stride}");
        }
    }
}
