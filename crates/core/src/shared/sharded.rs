//! Several indexes as one, each with some of the workers.

use std::hash::BuildHasher;
use std::num::NonZeroUsize;

use rustc_hash::FxBuildHasher;

use super::SharedIndex;
use crate::{
    Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, RankMatch, RankSize, WorkerId, WorkerRank,
};

/// Splits the workers among indexes, so that changes of different workers seldom meet.
///
/// # Consistency
///
/// That of one shard for each rank; a query asks the shards one after the other, so what it sees of
/// two workers may be from different moments.
///
/// # Cost
///
/// An event goes to one shard, chosen by a hash of its worker. A query goes to all of them: it costs
/// as many walks as there are shards.
#[derive(Debug)]
pub struct Sharded<S> {
    shards: Vec<S>,
}

impl<S: SharedIndex> Sharded<S> {
    /// So many shards, made one by one.
    #[must_use]
    pub fn new(shards: NonZeroUsize, make_shard: impl FnMut() -> S) -> Self {
        Self { shards: std::iter::repeat_with(make_shard).take(shards.get()).collect() }
    }

    fn shard(&self, worker: WorkerId) -> &S {
        // The high bits are the well-mixed ones of this hash.
        let hash = FxBuildHasher.hash_one(worker) >> 32;
        &self.shards[hash as usize % self.shards.len()]
    }
}

impl<S: SharedIndex> SharedIndex for Sharded<S> {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        self.shard(rank.worker).apply(rank, event)
    }

    fn prefetch(&self, rank: WorkerRank, event: &BlockEvent) {
        self.shard(rank.worker).prefetch(rank, event);
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        MatchScores { ranks: self.shards.iter().flat_map(|shard| shard.find(query).ranks).collect() }
    }

    fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        let tiers = |found: &RankMatch| {
            let shard = self.shard(found.rank.worker);
            shard.fastest_tiers(query, std::slice::from_ref(found)).pop().unwrap_or_default()
        };
        found.iter().map(tiers).collect()
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.shards.iter().flat_map(SharedIndex::ranks).collect()
    }

    fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
        self.shards.iter().flat_map(SharedIndex::sizes).collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.shard(rank.worker).held(rank)
    }

    fn clear_rank(&self, rank: WorkerRank) {
        self.shard(rank.worker).clear_rank(rank);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.shard(rank.worker).size(rank)
    }

    fn dump(&self, rank: WorkerRank) -> Vec<BlockEvent> {
        self.shard(rank.worker).dump(rank)
    }

    fn maintain(&self) -> bool {
        self.shards.iter().any(SharedIndex::maintain)
    }

    fn memory_bytes(&self) -> Option<usize> {
        self.shards.iter().map(SharedIndex::memory_bytes).sum()
    }

    fn remove_worker(&self, worker: WorkerId) {
        self.shard(worker).remove_worker(worker);
    }
}
