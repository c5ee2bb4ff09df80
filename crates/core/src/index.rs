//! The trait of index designs, and the results of applying events.

use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::{
    BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, RankMatch, WorkerId, WorkerRank, stored_events, tiers,
};

/// An index of the blocks held by many worker ranks.
///
/// # What a rank holds
///
/// For each rank an index has a set of sequence hashes, each with its parent, its local hash and a reference count
/// for each tier. A rank holds the first *d* blocks of a query if it has a chain of held blocks from the start of a
/// sequence, linked by parent, whose local hashes are the first *d* of the query. The order in which blocks arrived, and
/// blocks removed in between, do not matter:
///
/// * a block whose parent is missing **waits**, and counts once its parent is held;
/// * a block removed from the middle of a chain hides the blocks that follow it until it is stored again;
/// * a sequence hash identifies one block at a time: stored again with another parent or local hash it **moves**,
///   every earlier copy is dropped, and the blocks that follow it move with it.
///
/// [`oracle::Oracle`](crate::oracle::Oracle) implements this definition literally; every exact design must give its
/// answers.
///
/// # Consistency
///
/// One writer (`&mut self`), any number of readers between writes. Every answer is exact, except that designs which
/// look up blocks by local hash alone may overestimate, as each of them documents. Threads share a
/// [`SharedIndex`](crate::SharedIndex).
pub trait PrefixIndex: Send + Sync {
    /// Applies one event of `rank` and returns what it changed.
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges;

    /// Returns how many leading blocks of a prompt, given by local hashes, each rank holds.
    fn find(&self, query: &[LocalHash]) -> MatchScores;

    /// Counts the blocks of matches by the fastest tier that holds them, for each of `found`, which `find` returned
    /// for `query`. The counts of a match add up to its length in all tiers unless an event is applied meanwhile. If
    /// a rank has several sequence hashes for one prefix, the fastest copy counts.
    ///
    /// A match that is no longer in slower tiers than in device memory takes constant time. Others cost what the rank
    /// holds, unless the design does better.
    fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        tiers::fastest_tiers(query, found, |found| self.held(found.rank))
    }

    /// Every rank with blocks in the index, in no particular order.
    fn ranks(&self) -> Vec<WorkerRank>;

    /// Every block that `rank` holds, in no particular order.
    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock>;

    /// Drops every block that `rank` holds.
    fn clear_rank(&mut self, rank: WorkerRank);

    /// Size of `rank`. Must be fast: the service calls it once for each rank on every query.
    fn size(&self, rank: WorkerRank) -> RankSize;

    /// Stored events that make an empty index give the same answers for `rank` as this one, now and after any further
    /// event; parents come before children.
    fn dump(&self, rank: WorkerRank) -> Vec<BlockEvent> {
        stored_events(self.held(rank))
    }

    /// Drops every rank of `worker`.
    fn remove_worker(&mut self, worker: WorkerId) {
        let ranks = self.ranks().into_iter().filter(|rank| rank.worker == worker);
        ranks.for_each(|rank| self.clear_rank(rank));
    }
}

/// Changes by one event, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AppliedChanges {
    /// Blocks that the event's tier did not hold before.
    pub stored: u64,
    /// Blocks that the event's tier held already and that have more copies now.
    pub duplicate: u64,
    /// Of `stored`, blocks whose parent is unknown. The rank holds them, but they count in no match until the parent
    /// is held. A design without waiting blocks reports none.
    pub waiting: u64,
    /// Of `stored`, blocks whose sequence hash the rank used for another block before.
    pub moved: u64,
    /// Stored blocks that were refused because too many blocks wait for a parent, because of too many twins, or because
    /// a redefined sequence hash would have moved too many blocks.
    pub refused: u64,
    /// Of `refused`, blocks whose prefix has too many sequence hashes in the rank already, and the blocks that follow
    /// them.
    pub twins_refused: u64,
    /// Of `refused`, blocks that the rank held or stored when a redefined sequence hash would have moved too many of them.
    /// The rank holds none of them any more.
    pub moves_refused: u64,
    /// Removed blocks that the event's tier held; for a clear, all blocks that the rank held.
    pub removed: u64,
    /// Of `removed`, blocks that waited for a parent, and that the rank no longer holds in any tier. A design without
    /// waiting blocks reports none.
    pub waiting_removed: u64,
    /// Blocks to be removed or copied that the rank does not hold.
    pub unknown: u64,
}

impl Add for AppliedChanges {
    type Output = Self;
    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl AddAssign for AppliedChanges {
    fn add_assign(&mut self, other: Self) {
        self.stored += other.stored;
        self.duplicate += other.duplicate;
        self.waiting += other.waiting;
        self.moved += other.moved;
        self.refused += other.refused;
        self.twins_refused += other.twins_refused;
        self.moves_refused += other.moves_refused;
        self.removed += other.removed;
        self.waiting_removed += other.waiting_removed;
        self.unknown += other.unknown;
    }
}

impl AddAssign for RankSize {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.waiting += other.waiting;
        for (sum, blocks) in self.by_tier.0.iter_mut().zip(other.by_tier.0) {
            *sum += blocks;
        }
    }
}

impl Sum for RankSize {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        let mut sum = Self::default();
        sizes.for_each(|size| sum += size);
        sum
    }
}

/// Memory limit of an index, and its effects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Limit, in bytes.
    pub bytes_max: usize,
    /// Bytes in use now.
    pub bytes: usize,
    /// Most bytes ever in use.
    pub bytes_highest: usize,
    /// Evicted blocks, counted once for each rank that held them.
    pub evicted_blocks: u64,
    /// Stored blocks that were refused: their rank did not hold the parent in the index, or there was no room.
    pub refused_blocks: u64,
    /// Partial ranks: since the index last had all blocks of such a rank, it has evicted or refused some.
    pub partial_ranks: Arc<FxHashSet<WorkerRank>>,
}

/// Number of distinct blocks of one rank; copies of one block count once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RankSize {
    /// Blocks held in at least one tier.
    pub blocks: usize,
    /// Blocks held in each tier.
    pub by_tier: PerTier<usize>,
    /// Of `blocks`, those that wait for an unknown parent.
    pub waiting: usize,
}
