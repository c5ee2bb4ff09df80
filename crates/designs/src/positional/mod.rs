//! The positional index: blocks by their position in a sequence, so that a query can look at any
//! position without going through those before it.
//!
//! ```text
//!  (0, A1) ─▶ Single: prefix A1      ─▶ {rank 0, rank 1}        a query of 150 blocks looks at
//!  (1, C3) ─▶ Single: prefix A1 C3   ─▶ {rank 0}                positions 0, 64, 128 and 149, and
//!  (2, D4) ─▶ Multi:  prefix A1 C3 D4 ─▶ {rank 0}               goes back only where it has lost
//!                     prefix B2 C5 D4 ─▶ {rank 1}               ranks in between
//! ```
//!
//! # Prefix hashes
//!
//! A block is filed under our own rolling hash of its prefix ([`sequence_hashes`]), computed when it
//! gets its place, so engines may name blocks as they like. As everything that goes by hashes, an
//! answer is right as long as different prefixes at one position with one last block have different
//! 64-bit hashes.
//!
//! # What exactness costs
//!
//! Counting ranks at a checkpoint and concluding from an unchanged count that everybody went on
//! would claim too much: where a rank has lost blocks in between, and where it holds another
//! sequence with the same content at the checkpoint. So
//!
//! * membership is tested rank by rank, as bitsets, under the query's own prefix hash. The query's
//!   hashes are computed as far as it looks, one XXH3 of 16 bytes for each block; entries with one
//!   prefix need the comparison as much as those with several.
//! * only ranks without **holes** are jumped with: whose every held block follows held blocks, so
//!   that the one at the checkpoint proves the ones before it. Holes are tracked rank by rank, tier
//!   by tier and on the safe side (see [`Shape`]): a rank that has one is followed block by block
//!   until it has none, all such ranks of a query together.
//! * a rank with two names for one prefix is followed alone, block by block, along all its names.
//!
//! [`sequence_hashes`]: flash_indexer_core::hashing::sequence_hashes

mod entry;
mod rank;
mod search;
mod table;
mod twins;

use std::num::NonZeroUsize;

use flash_indexer_core::naming::{NamingLimits, RankWriter};
use flash_indexer_core::{
    Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, RankSize, SharedIndex, Tier, WorkerRank,
};
use parking_lot::RwLock;

use self::rank::{PositionalRank, Shape};
use self::search::Search;
use self::table::{RankPlaces, Table};
use super::matching::{Depths, Matching};
use super::rank_set::RankSet;
use super::rank_table::RankTable;

/// How the ranks that a jump has lost are looked for in what it skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LostRankSearch {
    /// Position by position from the last checkpoint: J lookups for a failed jump over J blocks.
    #[default]
    Scan,
    /// By halves: log J lookups for each depth at which ranks were lost.
    Binary,
}

/// Options of a [`Positional`] index.
#[derive(Debug, Clone, Copy)]
pub struct PositionalOptions {
    /// Blocks from one checkpoint to the next.
    pub jump_size: NonZeroUsize,
    /// How to find out where ranks were lost in between.
    pub lost_rank_search: LostRankSearch,
    /// Bounds of what a rank can make the index keep.
    pub limits: NamingLimits,
}

impl Default for PositionalOptions {
    fn default() -> Self {
        Self {
            jump_size: NonZeroUsize::new(64).expect("64 is not zero"),
            lost_rank_search: LostRankSearch::default(),
            limits: NamingLimits::default(),
        }
    }
}

/// An index by position that threads share, searched in jumps.
///
/// # Consistency
///
/// The changes of one worker come from one thread at a time. A query runs on the caller's thread and
/// sees each position entirely or not at all; for a rank that is being changed it may see an event in
/// part, and, as it does not look at every block, can find a depth that the rank had at no moment.
/// What it says of other ranks is exact, and with nobody writing everything is. A rank that held
/// nothing at some moment during a query may be missing from the answer. `held` and `size` take a
/// rank between two events.
///
/// # Cost
///
/// A query of depth *D* costs O(D / J) lookups for jumps of J blocks, as many again for ranks lost on
/// the way as [`LostRankSearch`] says, D hashes of 16 bytes, and D lookups more if a matching rank has
/// holes. Storing or removing a block costs one lookup by name and one by position. What a moved
/// block takes along, and what follows a removed block beyond [`NamingLimits::removed_blocks_max`], is
/// looked for among all that the rank has named.
#[derive(Debug, Default)]
pub struct Positional {
    table: Table,
    ranks: RankTable<RwLock<PositionalRank>>,
    not_to_jump: RwLock<NotToJump>,
    options: PositionalOptions,
}

/// The ranks that a query cannot jump with.
#[derive(Debug, Default)]
struct NotToJump {
    /// Followed block by block, tier by tier.
    with_holes: PerTier<RankSet>,
    /// Followed alone.
    with_twins: RankSet,
}

impl Positional {
    /// An empty index with the given options.
    #[must_use]
    pub fn new(options: PositionalOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Positions with blocks, each counted once for every local hash there.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.table.len()
    }
}

impl NotToJump {
    fn set(&mut self, slot: u32, shape: Shape) {
        for tier in Tier::ALL {
            put(&mut self.with_holes[tier], slot, shape.may_have_holes(tier));
        }
        put(&mut self.with_twins, slot, shape.has_twins());
    }

    /// Takes the ranks that are not to be jumped with out of `matching`: those with holes, and the
    /// slots of those with twins.
    fn split_off(&self, matching: &mut Matching) -> (Matching, Vec<u32>) {
        let twins = matching.0[Tier::External].iter().filter(|&slot| self.with_twins.contains(slot)).collect();
        let mut with_holes = Matching::default();
        for tier in Tier::ALL {
            matching.0[tier].split_off_inside(&self.with_twins);
            with_holes.0[tier] = matching.0[tier].split_off_inside(&self.with_holes[tier]);
        }
        (with_holes, twins)
    }
}

fn put(set: &mut RankSet, slot: u32, is_in: bool) {
    match is_in {
        true => set.insert(slot),
        false => set.remove(slot),
    }
}

impl SharedIndex for Positional {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        let (slot, state) = self.ranks.get_or_insert(rank);
        let mut state = state.write();
        let PositionalRank { names, twins, shape } = &mut *state;
        let placement = RankPlaces { table: &self.table, slot, twins };
        let applied = RankWriter { placement, names, limits: self.options.limits }.apply(event);
        let new_shape = Shape::of(names, *twins);
        if std::mem::replace(shape, new_shape) != new_shape {
            self.not_to_jump.write().set(slot, new_shape);
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
        if let Some(mut matching) = search.start() {
            let (with_holes, with_twins) = self.not_to_jump.read().split_off(&mut matching);
            search.jump(matching, self.options, &mut depths);
            search.follow(with_holes, &mut depths);
            for slot in with_twins {
                depths.record_rank(slot, twins::depths_of(&mut search, slot));
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
