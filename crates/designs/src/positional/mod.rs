//! The positional index: blocks by their position in a sequence, so that a query can look up any position directly.
//!
//! ```text
//!  (0, A1) ─▶ Single:   prefix A1       ─▶ {rank 0, rank 1}      a query of 150 blocks reads
//!  (1, C3) ─▶ Single:   prefix A1 C3    ─▶ {rank 0}              positions 0, 64, 128 and 149. It
//!  (2, D4) ─▶ Multiple: prefix A1 C3 D4 ─▶ {rank 0}              reads positions in between only
//!                       prefix B2 C5 D4 ─▶ {rank 1}              where ranks dropped out.
//! ```
//!
//! # Prefix hashes
//!
//! The table stores a block under our own rolling hash of its prefix ([`sequence_hashes`]), computed when the block is
//! placed, so that engines can use any names. An answer is right if different prefixes of the same length with the same
//! last local hash have different 64-bit prefix hashes.
//!
//! # The cost of exactness
//!
//! A query that compared only the number of ranks at two checkpoints would claim too much: a rank can miss blocks in
//! between, and a rank can hold another sequence with the same local hash at the checkpoint. So
//!
//! * a query tests membership rank by rank, with bitsets, under its own prefix hash. It computes prefix hashes up to the last
//!   position that it reads, one XXH3 of 16 bytes for each block. Entries with a single prefix need that comparison too.
//! * a query jumps only with ranks without **gaps**: every held block of the rank follows held blocks, so a block at a
//!   checkpoint proves the blocks before it. The index tracks gaps for each rank and tier, with false positives
//!   ([`JumpObstacles`]). A query scans all matching ranks with gaps together, block by block.
//! * a query follows a rank with several names for one prefix alone, block by block, along all its names.
//!
//! [`sequence_hashes`]: flash_indexer_core::hashing::sequence_hashes

mod entry;
mod rank_state;
mod search;
mod table;
mod twins;

use std::num::NonZeroUsize;

use flash_indexer_core::rank_blocks::{RankBlockLimits, RankWriter};
use flash_indexer_core::{
    AppliedChanges, BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, RankSize, SharedIndex, Tier, WorkerRank,
};
use parking_lot::RwLock;

use self::rank_state::{JumpObstacles, RankState};
use self::search::Search;
use self::table::{RankEntries, Table};
use super::active_ranks::{ActiveRanks, Depths};
use super::rank_set::RankSet;
use super::rank_table::RankTable;

/// How a query finds the depths of the ranks that dropped out during a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DroppedRankSearch {
    /// A linear scan from the last checkpoint: J lookups for a jump over J blocks.
    #[default]
    Scan,
    /// A binary search: log J lookups for each depth at which ranks dropped out.
    Binary,
}

/// Options of a [`Positional`] index.
#[derive(Debug, Clone, Copy)]
pub struct PositionalOptions {
    /// Blocks from one checkpoint to the next.
    pub jump_size: NonZeroUsize,
    /// The search for the depths of dropped ranks.
    pub dropped_rank_search: DroppedRankSearch,
    /// Limits of the waiting and removed blocks of one rank.
    pub limits: RankBlockLimits,
}

impl Default for PositionalOptions {
    fn default() -> Self {
        Self {
            jump_size: NonZeroUsize::new(64).expect("64 is not zero"),
            dropped_rank_search: DroppedRankSearch::default(),
            limits: RankBlockLimits::default(),
        }
    }
}

/// An index of blocks by position. Threads share it, and a query jumps from checkpoint to checkpoint.
///
/// # Consistency
///
/// The changes of one worker come from one thread at a time. A query runs on the caller's thread.
///
/// * A query sees each block of an event entirely or not at all, and can see the blocks of one event in part.
/// * The answer for a rank that changes during the query can be a depth that the rank had at no moment, because the query
///   does not read every block.
/// * The answer for any other rank is exact.
/// * A rank that held no block at some moment of the query can be missing from the answer.
/// * `held` and `size` see a rank between two events.
///
/// # Cost
///
/// A query of depth D costs D / J lookups for jumps of J blocks, the lookups of [`DroppedRankSearch`], and D hashes of 16
/// bytes. If a matching rank has gaps, the query costs D more lookups. Storing or removing a block costs one lookup by name
/// and one by position. Moving a block, and removing one beyond [`RankBlockLimits::removed_blocks_max`], visits every block
/// that the rank has named if blocks follow it.
#[derive(Debug, Default)]
pub struct Positional {
    table: Table,
    ranks: RankTable<RwLock<RankState>>,
    scanned_ranks: RwLock<ScannedRanks>,
    options: PositionalOptions,
}

/// The ranks that a query scans instead of jumping.
#[derive(Debug, Default)]
struct ScannedRanks {
    /// Ranks with gaps, by tier. A query scans them together.
    with_gaps: PerTier<RankSet>,
    /// Ranks with twins. A query follows each of them alone.
    with_twins: RankSet,
}

impl Positional {
    /// An empty index with the given options.
    #[must_use]
    pub fn new(options: PositionalOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Number of entries in the table: pairs of position and local hash.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.table.len()
    }
}

impl ScannedRanks {
    fn set(&mut self, slot: u32, obstacles: JumpObstacles) {
        for tier in Tier::ALL {
            set_member(&mut self.with_gaps[tier], slot, obstacles.may_have_gaps(tier));
        }
        set_member(&mut self.with_twins, slot, obstacles.has_twins);
    }

    /// Removes the scanned ranks from `active`. Returns the ranks with gaps, and the slots of the ranks with twins.
    fn split_off(&self, active: &mut ActiveRanks) -> (ActiveRanks, Vec<u32>) {
        let twins = active.0[Tier::External].iter().filter(|&slot| self.with_twins.contains(slot)).collect();
        let mut with_gaps = ActiveRanks::default();
        for tier in Tier::ALL {
            active.0[tier].split_off_intersection(&self.with_twins);
            with_gaps.0[tier] = active.0[tier].split_off_intersection(&self.with_gaps[tier]);
        }
        (with_gaps, twins)
    }
}

fn set_member(set: &mut RankSet, slot: u32, is_member: bool) {
    match is_member {
        true => set.insert(slot),
        false => set.remove(slot),
    }
}

impl SharedIndex for Positional {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        let (slot, state) = self.ranks.get_or_insert(rank);
        let mut state = state.write();
        let RankState { names, twins, obstacles } = &mut *state;
        let placement = RankEntries { table: &self.table, slot, twins };
        let applied = RankWriter { placement, names, limits: self.options.limits }.apply(event);
        let new_obstacles = JumpObstacles::of(names, *twins);
        if std::mem::replace(obstacles, new_obstacles) != new_obstacles {
            self.scanned_ranks.write().set(slot, new_obstacles);
        }
        if names.is_empty() {
            self.ranks.release(slot);
        }
        applied
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let before = self.ranks.snapshot();
        let mut search = Search::new(&self.table, query);
        let mut depths = Depths::default();
        if let Some(mut active) = search.start() {
            let (with_gaps, with_twins) = self.scanned_ranks.read().split_off(&mut active);
            search.jump(active, self.options, &mut depths);
            search.scan(with_gaps, 1, query.len(), &mut depths);
            for slot in with_twins {
                depths.record_rank(slot, twins::depths_with_twins(&mut search, slot));
            }
        }
        self.ranks.scores(&before, depths)
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.ranks.snapshot().ranks().collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.ranks.get(rank).map(|state| state.read().names.held()).unwrap_or_default()
    }

    fn clear_rank(&self, rank: WorkerRank) {
        self.apply(rank, &BlockEvent::Cleared);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.ranks.get(rank).map(|state| state.read().names.size()).unwrap_or_default()
    }
}
