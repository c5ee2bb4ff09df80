//! The inverted index: from local hash to sequence hashes to the ranks that hold them.
//!
//! ```text
//!  A1 ─▶ 0x11 ─▶ {rank 0, rank 1}      a query A1 C3 asks once for each block: who holds any
//!  C3 ─▶ 0x12 ─▶ {rank 0}              block with this content? Ranks only ever drop out.
//!        0x47 ─▶ {rank 2}
//! ```

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{
    Applied, Block, BlockEvent, HeldBlock, LocalHash, MatchScores, PrefixIndex, RankSize, SequenceHash, Tier,
    WorkerRank,
};

use super::holders::Holders;
use super::matching::{Depths, Matching};
use super::rank_blocks::{Postings, RankBlocks};
use super::rank_slots::RankSlots;

/// One map for all ranks, from local hash to blocks with that content to their holders, and a table
/// of each rank's blocks for events.
///
/// # Inexact
///
/// Exactly as [`NestedMap`](super::NestedMap) is, and it gives the same answers.
///
/// # Cost
///
/// An event costs three hash lookups a block. A query goes over its blocks once: at each, the ranks
/// that do not hold the content are taken out of a bitset, each rank once, so that it costs
/// O(D + W), in units of a word of 64 ranks and more where blocks of several sequences have the same
/// content. One writer; wrap it for sharing.
#[derive(Debug, Default)]
pub struct Inverted {
    by_content: KeyedMap<LocalHash, KeyedMap<SequenceHash, Holders>>,
    ranks: RankSlots<RankBlocks>,
}

/// The index as one rank's writer sees it.
struct RankPostings<'i> {
    by_content: &'i mut KeyedMap<LocalHash, KeyedMap<SequenceHash, Holders>>,
    slot: u32,
}

impl Postings for RankPostings<'_> {
    fn appear(&mut self, block: Block, tier: Tier) {
        let same_content = self.by_content.entry(block.local).or_default();
        same_content.entry(block.sequence).or_default().hold(self.slot, tier);
    }

    fn disappear(&mut self, block: Block, tier: Tier) {
        let same_content = self.by_content.get_mut(&block.local).expect("the block has appeared");
        let holders = same_content.get_mut(&block.sequence).expect("the block has appeared");
        holders.withdraw(self.slot, tier);
        if holders.is_empty() {
            same_content.remove(&block.sequence);
            if same_content.is_empty() {
                self.by_content.remove(&block.local);
            }
        }
    }
}

impl Inverted {
    /// Takes out the ranks that hold no block with this content.
    fn split_off_lost(&self, matching: &mut Matching, local: LocalHash) -> Option<Matching> {
        let same_content = self.by_content.get(&local).map(KeyedMap::values);
        let mut same_content = same_content.into_iter().flatten();
        match (same_content.next(), same_content.next()) {
            (None, _) => Some(std::mem::take(matching)),
            (Some(only), None) => matching.split_off_lost(only),
            (Some(first), Some(second)) => {
                let mut holding = Matching::holding(first);
                [second].into_iter().chain(same_content).for_each(|holders| holding.unite(holders));
                matching.split_off_outside(&holding)
            }
        }
    }
}

impl PrefixIndex for Inverted {
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        let slot = self.ranks.slot(rank).unwrap_or_else(|| self.ranks.insert(rank, RankBlocks::default()));
        let blocks = self.ranks.state_mut(slot);
        let applied = blocks.apply(event, &mut RankPostings { by_content: &mut self.by_content, slot });
        if blocks.is_empty() {
            self.ranks.release(slot);
        }
        applied
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let mut depths = Depths::default();
        let Some(first) = query.first().and_then(|local| self.by_content.get(local)) else {
            return MatchScores::default();
        };
        let mut matching = Matching::default();
        first.values().for_each(|holders| matching.unite(holders));
        for (&local, depth) in query[1..].iter().zip(1..) {
            if let Some(lost) = self.split_off_lost(&mut matching, local) {
                depths.record(&lost, depth);
            }
            if matching.is_empty() {
                break;
            }
        }
        depths.record(&matching, query.len());
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
