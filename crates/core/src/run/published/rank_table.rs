//! The published table of ranks and their holders.
//!
//! ```text
//!  rank:   worker | dp rank, in use (bit 32) | blocks | waiting | blocks in each of four tiers
//!  holder: rank's number (32) | first level (4) | last level (4)
//! ```
//!
//! A holder covers the levels from its own tier up to the next slower tier that the rank uses: a rank
//! that uses one tier has one holder.

use std::sync::atomic::AtomicBool;

use super::arena::{Arena, LINE_WORDS};
use super::atomics::{Acquire, AtomicU64, Relaxed, Release, fence};
use super::holdings::Holder;
use crate::{DpRank, PerTier, RankSize, Tier, WorkerId, WorkerRank};

const IN_USE: u64 = 1 << 32;

/// Number of a rank within the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct RankSlot(pub(crate) u32);

/// The published rank table. Its version changes when ranks or holders come and go; sizes are counters that change
/// without it.
#[derive(Debug)]
pub(crate) struct RankTable {
    version: AtomicU64,
    rank_count: AtomicU64,
    holder_count: AtomicU64,
    ranks: Arena,
    holders: Arena,
    /// Whether a change may have started that never ends. It is the standard library's atomic in loom models as well,
    /// because no data is read through it.
    abandoned: AtomicBool,
}

/// The rank and the levels that a holder represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HolderAssignment {
    pub(crate) rank: RankSlot,
    /// First and last level that it covers, as numbers of tiers.
    pub(crate) first: u8,
    pub(crate) last: u8,
}

impl HolderAssignment {
    /// Assignment of a holder that is not in use, or whose ends are still being filled in.
    pub(crate) const UNUSED: Self = Self { rank: RankSlot(u32::MAX), first: 1, last: 0 };

    pub(crate) fn is_in_use(self) -> bool {
        self.first <= self.last
    }

    /// Whether it covers the depth in this tier and all faster ones.
    #[inline]
    pub(crate) fn covers_level(self, level: Tier) -> bool {
        (self.first..=self.last).contains(&(level as u8))
    }

    /// Whether it covers every level: the rank has no other holder.
    #[inline]
    pub(crate) fn covers_all_levels(self) -> bool {
        self.first == 0 && usize::from(self.last) + 1 == Tier::ALL.len()
    }
}

impl RankTable {
    /// Creates an empty table whose versions start at an even number.
    pub(crate) fn new(version: u64) -> Self {
        Self {
            version: AtomicU64::new(version),
            rank_count: AtomicU64::new(0),
            holder_count: AtomicU64::new(0),
            ranks: Arena::new(LINE_WORDS),
            holders: Arena::new(1),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Releases every reader that waits for a change that never ends.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Relaxed);
    }

    /// Whether readers must not wait for a change under way.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Relaxed)
    }

    /// The version before a read; none while the writer changes the table.
    #[inline]
    pub(crate) fn version(&self) -> Option<u64> {
        let version = self.version.load(Acquire);
        version.is_multiple_of(2).then_some(version)
    }

    /// A version that this table never had and never will have.
    pub(crate) fn next_version(&self) -> u64 {
        self.version.load(Relaxed) + 2
    }

    /// Whether the version is unchanged; call after `fence(Acquire)`.
    #[inline]
    pub(crate) fn is_unchanged(&self, version: u64) -> bool {
        self.version.load(Relaxed) == version
    }

    /// One more than the largest holder in use.
    #[inline]
    pub(crate) fn holder_count(&self) -> usize {
        self.holder_count.load(Acquire) as usize
    }

    #[inline]
    pub(crate) fn assignment(&self, holder: Holder) -> HolderAssignment {
        let word = self.holders.record(holder.0)[0].load(Relaxed);
        HolderAssignment { rank: RankSlot(word as u32), first: (word >> 32) as u8 & 15, last: (word >> 36) as u8 & 15 }
    }

    pub(crate) fn rank(&self, slot: RankSlot) -> WorkerRank {
        let record = self.ranks.record(slot.0);
        let (worker, dp_rank) = (record[0].load(Relaxed), record[1].load(Relaxed));
        WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(dp_rank as u32) }
    }

    /// Ranks in use with their numbers. The caller validates the read.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (WorkerRank, RankSlot)> {
        let count = self.rank_count.load(Acquire) as u32;
        let in_use = (0..count).filter(|&slot| self.ranks.record(slot)[1].load(Relaxed) & IN_USE != 0);
        in_use.map(|slot| (self.rank(RankSlot(slot)), RankSlot(slot)))
    }

    pub(crate) fn size_of(&self, slot: RankSlot) -> RankSize {
        let record = self.ranks.record(slot.0);
        let word = |at: usize| record[at].load(Relaxed) as usize;
        RankSize { blocks: word(2), waiting: word(3), by_tier: PerTier(std::array::from_fn(|tier| word(4 + tier))) }
    }

    /// Stores the counters of a rank. Called by the writer only.
    pub(crate) fn set_size(&self, slot: RankSlot, size: &RankSize) {
        let record = self.ranks.record(slot.0);
        record[2].store(size.blocks as u64, Relaxed);
        record[3].store(size.waiting as u64, Relaxed);
        for (at, &blocks) in size.by_tier.0.iter().enumerate() {
            record[4 + at].store(blocks as u64, Relaxed);
        }
    }

    /// Changes the table atomically for readers. Called by the writer only.
    pub(crate) fn change(&self, change: impl FnOnce(&RankTableWriter<'_>)) {
        let version = self.version.load(Relaxed);
        self.version.store(version + 1, Relaxed);
        fence(Release);
        change(&RankTableWriter { table: self });
        self.version.store(version + 2, Release);
    }
}

/// A change of the table, which readers see completely or not at all.
pub(crate) struct RankTableWriter<'a> {
    table: &'a RankTable,
}

impl RankTableWriter<'_> {
    pub(crate) fn set_rank(&self, slot: RankSlot, rank: Option<WorkerRank>) {
        self.table.ranks.ensure(slot.0);
        let record = self.table.ranks.record(slot.0);
        let (worker, dp_rank) = rank.map_or((0, 0), |rank| (rank.worker.0, IN_USE | u64::from(rank.dp_rank.0)));
        record[0].store(worker, Relaxed);
        record[1].store(dp_rank, Relaxed);
        raise(&self.table.rank_count, slot.0);
    }

    pub(crate) fn set_holder(&self, holder: Holder, assignment: HolderAssignment) {
        self.table.holders.ensure(holder.0);
        let levels = u64::from(assignment.first) << 32 | u64::from(assignment.last) << 36;
        self.table.holders.record(holder.0)[0].store(u64::from(assignment.rank.0) | levels, Relaxed);
        raise(&self.table.holder_count, holder.0);
    }
}

fn raise(count: &AtomicU64, number: u32) {
    let wanted = u64::from(number) + 1;
    if count.load(Relaxed) < wanted {
        count.store(wanted, Release);
    }
}
