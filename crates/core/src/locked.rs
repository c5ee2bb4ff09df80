//! A single-threaded index behind a read-write lock.

use parking_lot::RwLock;

use crate::{
    AppliedChanges, BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, PrefixIndex, RankMatch, RankSize,
    SharedIndex, WorkerRank,
};

/// Shares a [`PrefixIndex`] behind a read-write lock.
///
/// A query sees an event entirely or not at all, and blocks while an event is applied.
#[derive(Debug, Default)]
pub struct LockedIndex<I> {
    index: RwLock<I>,
}

impl<I> LockedIndex<I> {
    /// Shares `index`.
    #[must_use]
    pub const fn new(index: I) -> Self {
        Self { index: RwLock::new(index) }
    }
}

impl<I: PrefixIndex> SharedIndex for LockedIndex<I> {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        self.index.write().apply(rank, event)
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        self.index.read().find(query)
    }

    fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        self.index.read().fastest_tiers(query, found)
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.index.read().ranks()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.index.read().held(rank)
    }

    fn clear_rank(&self, rank: WorkerRank) {
        self.index.write().clear_rank(rank);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.index.read().size(rank)
    }
}
