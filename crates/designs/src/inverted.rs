//! The inverted index: a map from local hash to sequence hashes to the ranks that hold them.
//!
//! ```text
//!  A1 ─▶ 0x11 ─▶ {rank 0, rank 1}      a query A1 C3 reads one entry for each block: the ranks
//!  C3 ─▶ 0x12 ─▶ {rank 0}              that hold any block with this local hash. Ranks only drop out.
//!        0x47 ─▶ {rank 2}
//! ```

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{
    AppliedChanges, Block, BlockEvent, HeldBlock, LocalHash, MatchScores, PrefixIndex, RankSize, SequenceHash, Tier,
    WorkerRank,
};

use super::active_ranks::{ActiveRanks, Depths};
use super::holders::Holders;
use super::rank_blocks::{Postings, RankBlocks};
use super::rank_slots::RankSlots;

/// One map for all ranks, from local hash to sequence hash to holders, and a table of each rank's blocks for events.
///
/// # Inexact
///
/// It gives the answers of [`NestedMap`](super::NestedMap).
///
/// # Cost
///
/// An event costs three hash lookups a block. A query visits each of its blocks once and removes from a bitset the ranks
/// that do not hold the local hash. Each rank is removed once, so a query of depth D over W ranks costs O(D + W), in words
/// of 64 ranks. Sequences that share a local hash add to that. One writer at a time; [`LockedIndex`](flash_indexer_core::LockedIndex)
/// shares it.
#[derive(Debug, Default)]
pub struct Inverted {
    by_local: KeyedMap<LocalHash, KeyedMap<SequenceHash, Holders>>,
    ranks: RankSlots<RankBlocks>,
}

/// The index as one rank's writer sees it.
struct RankPostings<'i> {
    by_local: &'i mut KeyedMap<LocalHash, KeyedMap<SequenceHash, Holders>>,
    slot: u32,
}

impl Postings for RankPostings<'_> {
    fn insert(&mut self, block: Block, tier: Tier) {
        let same_local = self.by_local.entry(block.local).or_default();
        same_local.entry(block.sequence).or_default().hold(self.slot, tier);
    }

    fn remove(&mut self, block: Block, tier: Tier) {
        let same_local = self.by_local.get_mut(&block.local).expect("the block was inserted");
        let holders = same_local.get_mut(&block.sequence).expect("the block was inserted");
        holders.remove_tier(self.slot, tier);
        if holders.is_empty() {
            same_local.remove(&block.sequence);
            if same_local.is_empty() {
                self.by_local.remove(&block.local);
            }
        }
    }
}

impl Inverted {
    /// Removes the ranks that hold no block with this local hash and returns them.
    fn split_off_dropped(&self, active: &mut ActiveRanks, local: LocalHash) -> Option<ActiveRanks> {
        let same_local = self.by_local.get(&local).map(KeyedMap::values);
        let mut same_local = same_local.into_iter().flatten();
        match (same_local.next(), same_local.next()) {
            (None, _) => Some(std::mem::take(active)),
            (Some(only), None) => active.split_off_dropped(only),
            (Some(first), Some(second)) => {
                let mut holding = ActiveRanks::holding(first);
                [second].into_iter().chain(same_local).for_each(|holders| holding.union_with(holders));
                active.split_off_difference(&holding)
            }
        }
    }
}

impl PrefixIndex for Inverted {
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        let slot = self.ranks.slot(rank).unwrap_or_else(|| self.ranks.insert(rank, RankBlocks::default()));
        let blocks = self.ranks.state_mut(slot);
        let applied = blocks.apply(event, &mut RankPostings { by_local: &mut self.by_local, slot });
        if blocks.is_empty() {
            self.ranks.release(slot);
        }
        applied
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let mut depths = Depths::default();
        let Some(first) = query.first().and_then(|local| self.by_local.get(local)) else {
            return MatchScores::default();
        };
        let mut active = ActiveRanks::default();
        first.values().for_each(|holders| active.union_with(holders));
        for (&local, depth) in query[1..].iter().zip(1..) {
            if let Some(dropped) = self.split_off_dropped(&mut active, local) {
                depths.record(&dropped, depth);
            }
            if active.is_empty() {
                break;
            }
        }
        depths.record(&active, query.len());
        depths.into_scores(|slot| self.ranks.rank(slot))
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.ranks.ranks().collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.ranks.state(rank).map(RankBlocks::held).unwrap_or_default()
    }

    fn clear_rank(&mut self, rank: WorkerRank) {
        self.apply(rank, &BlockEvent::Cleared);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.ranks.state(rank).map(RankBlocks::size).unwrap_or_default()
    }
}
