//! What every index design offers.

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
/// For each rank an index knows a set of sequence hashes, each with its parent, its local hash and
/// how many copies lie in each tier. A rank holds the first *d* blocks of a query when there is a
/// chain of held blocks from the start of a sequence, linked by parent, whose local hashes are the
/// first *d* of the query. Nothing else counts: not the order in which blocks arrived, not blocks
/// removed in between. So
///
/// * a block whose parent is missing **waits** and counts from the moment its parent is held;
/// * a block removed from the middle of a chain hides what follows it until it is stored again;
/// * a sequence hash means one thing at a time: stored again with another parent or content it
///   **moves**, every earlier copy is forgotten, and blocks that follow it follow it there.
///
/// [`oracle::Oracle`](crate::oracle::Oracle) says exactly this, without any shortcut; every exact
/// design must give its answers.
///
/// # Consistency
///
/// One writer (`&mut self`), any number of readers between writes; every answer is exact, except that
/// the designs that look blocks up by content alone claim too much where they say so.
/// [`SharedIndex`](crate::SharedIndex) is what threads share.
pub trait PrefixIndex: Send + Sync {
    /// Applies one event of `rank` and says what it changed.
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> Applied;

    /// For the local hashes of a prompt's blocks, how many leading blocks each rank holds.
    fn find(&self, query: &[LocalHash]) -> MatchScores;

    /// Where the blocks of matches lie: for each of `found`, as `find` gave it for `query`, how many of its blocks
    /// have each tier as the fastest one that holds them. Together they are as many as the match has in any tier,
    /// unless something changes meanwhile. Where a rank has several names for one prefix, the fastest counts.
    ///
    /// A match that goes no further in slower tiers costs nothing. Others cost what the rank holds, unless the
    /// design knows better.
    fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        tiers::fastest_tiers(query, found, |found| self.held(found.rank))
    }

    /// Every rank that the index holds something of, in no particular order.
    fn ranks(&self) -> Vec<WorkerRank>;

    /// Everything that `rank` holds, in no particular order.
    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock>;

    /// Forgets everything that `rank` holds.
    fn clear_rank(&mut self, rank: WorkerRank);

    /// How much `rank` holds. Cheap: called once a rank on every query of the service.
    fn size(&self, rank: WorkerRank) -> RankSize;

    /// Stored events that make an empty index answer for `rank` as this one does, now and after any
    /// further event; parents come before children.
    fn dump(&self, rank: WorkerRank) -> Vec<BlockEvent> {
        stored_events(self.held(rank))
    }

    /// Forgets every rank of `worker`.
    fn remove_worker(&mut self, worker: WorkerId) {
        for rank in self.ranks() {
            if rank.worker == worker {
                self.clear_rank(rank);
            }
        }
    }
}

/// What one event changed, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Newly held in the event's tier.
    pub stored: u64,
    /// Held in the event's tier already, with more copies now.
    pub duplicate: u64,
    /// Of `stored`, those set aside because their parent is not known: held, but not counted in
    /// any match until it is. A design that sets nothing aside reports none.
    pub waiting: u64,
    /// Of `stored`, those that contradicted what their sequence hash meant to the rank.
    pub moved: u64,
    /// Stored blocks refused because too many were waiting for a parent already, or had twins.
    pub refused: u64,
    /// Of `refused`, those refused because the rank has too many other names for the same prefix, and blocks that follow
    /// them.
    pub twins_refused: u64,
    /// Removals of blocks that were held in the event's tier; for a clear, blocks that were held.
    pub removed: u64,
    /// Removals or tier copies of blocks that the rank does not hold.
    pub unknown: u64,
}

impl Add for Applied {
    type Output = Self;
    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl AddAssign for Applied {
    fn add_assign(&mut self, other: Self) {
        self.stored += other.stored;
        self.duplicate += other.duplicate;
        self.waiting += other.waiting;
        self.moved += other.moved;
        self.refused += other.refused;
        self.twins_refused += other.twins_refused;
        self.removed += other.removed;
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

/// What bounds the memory of an index, and what that has cost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes that the index takes at most.
    pub bytes_max: usize,
    /// Bytes that it takes.
    pub bytes: usize,
    /// The most that it ever took.
    pub bytes_highest: usize,
    /// Blocks that were forgotten for others, once for each rank that held them.
    pub evicted_blocks: u64,
    /// Stored blocks that were not taken in: their rank was not known to hold what they follow, or there was
    /// no room.
    pub refused_blocks: u64,
    /// Ranks that hold more than the index knows: since it last knew them to hold nothing, it has
    /// forgotten or refused some of theirs.
    pub partial_ranks: Arc<FxHashSet<WorkerRank>>,
}

/// How much one rank holds, in distinct blocks (copies of one block count once).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RankSize {
    /// Held in at least one tier.
    pub blocks: usize,
    /// Held in each tier.
    pub by_tier: PerTier<usize>,
    /// Of `blocks`, those set aside until their parent is known.
    pub waiting: usize,
}
