//! Indexes that threads share, and how a design for one thread becomes one.

mod actor;
mod locked;
mod sharded;
mod thread_pool;

pub use actor::{ACTOR_REQUESTS_MAX, Actor};
pub use locked::Locked;
pub use sharded::Sharded;
pub use thread_pool::{ThreadPool, ThreadPoolOptions};

use crate::{
    Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, MemoryLimit, PerTier, RankMatch, RankSize, WorkerId,
    WorkerRank, stored_events, tiers,
};

/// How many events before its turn an event is told of: [`SharedIndex::prefetch`].
pub const PREFETCH_DISTANCE: usize = 3;

/// An index that many threads read and write at once.
///
/// What it holds and answers is defined by [`PrefixIndex`](crate::PrefixIndex).
///
/// # Consistency
///
/// The changes of one worker (`apply`, `clear_rank`, `remove_worker`) must come from one thread at a
/// time, in the order in which its engine made them; different workers may be changed at once.
/// When nothing is being changed every answer is exact. What a reader may see during a change is said
/// by each design. A change may wait for queries that are under way, never for whoever uses their
/// answers.
pub trait SharedIndex: Send + Sync {
    /// Applies one event of `rank` and says what it changed.
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> Applied;

    /// Tells of an event [`PREFETCH_DISTANCE`] events before its turn, so that what it needs is asked for from memory.
    /// Changes nothing and waits for nobody. The run index applies events of one block in 15% less time for it; other
    /// designs make no use of it.
    fn prefetch(&self, _rank: WorkerRank, _event: &BlockEvent) {}

    /// For the local hashes of a prompt's blocks, how many leading blocks each rank holds.
    fn find(&self, query: &[LocalHash]) -> MatchScores;

    /// Where the blocks of matches lie: [`PrefixIndex::fastest_tiers`](crate::PrefixIndex::fastest_tiers).
    fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        tiers::fastest_tiers(query, found, |found| self.held(found.rank))
    }

    /// Every rank that the index holds something of, in no particular order.
    fn ranks(&self) -> Vec<WorkerRank>;

    /// Everything that `rank` holds, in no particular order.
    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock>;

    /// Forgets everything that `rank` holds. Costs all of that, except in the run index: [`SharedIndex::maintain`].
    fn clear_rank(&self, rank: WorkerRank);

    /// How much `rank` holds; for all ranks at once, [`SharedIndex::sizes`].
    fn size(&self, rank: WorkerRank) -> RankSize;

    /// Every rank that the index holds something of, with how much.
    fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
        self.ranks().into_iter().map(|rank| (rank, self.size(rank))).collect()
    }

    /// Bytes that the index takes; none if its design does not know.
    fn memory_bytes(&self) -> Option<usize> {
        None
    }

    /// What bounds the index's memory, and what that has cost; none if nothing does. Waits for nobody.
    fn memory_limit(&self) -> Option<MemoryLimit> {
        None
    }

    /// Does a bounded part of what changes have left to be done later, and says whether anything is left: to be called when
    /// there is nothing else to do, so that memory is given back without further changes. No answer depends on it. The run
    /// index leaves work to it; other designs do all of it with the change.
    fn maintain(&self) -> bool {
        false
    }

    /// Names that queries have passed over because a prompt had more of them in one rank than a query follows. None in a
    /// design that follows all.
    fn twins_skipped(&self) -> u64 {
        0
    }

    /// Gives a bounded index another bound, one that it can live with; an index without a bound stays so.
    /// One that takes more makes a copy of the most valuable that it has, for which there are `spare_bytes`
    /// beside what it takes now. Costs what is kept and what is forgotten; changes wait meanwhile.
    fn set_memory_max(&self, _bytes_max: usize, _spare_bytes: usize) {}

    /// Gives the index up after a change that panicked: nothing changes it any more, and no query waits for that change
    /// to end. Answers may be wrong from then on; the index is to be replaced before.
    fn abandon(&self) {}

    /// Stored events that make an empty index answer for `rank` as this one does, now and after any
    /// further event; parents come before children.
    fn dump(&self, rank: WorkerRank) -> Vec<BlockEvent> {
        stored_events(self.held(rank))
    }

    /// Forgets every rank of `worker`.
    fn remove_worker(&self, worker: WorkerId) {
        for rank in self.ranks() {
            if rank.worker == worker {
                self.clear_rank(rank);
            }
        }
    }
}
