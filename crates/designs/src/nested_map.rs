//! The nested map: for each rank, from local hash to the sequence hashes of its blocks.
//!
//! ```text
//!  rank 0 ─▶ A1 ─▶ {0x11}          a query A1 C3 asks each rank: is there any block with A1?
//!            C3 ─▶ {0x12, 0x47}    and any with C3? — under whatever parent
//!  rank 1 ─▶ A1 ─▶ {0x71}
//! ```

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::naming::Tiers;
use flash_indexer_core::{
    Applied, Block, BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, PrefixIndex, RankMatch, RankSize,
    SequenceHash, Tier, WorkerRank,
};

use super::rank_blocks::{Postings, RankBlocks};

/// For each rank a map from local hash to its blocks with that content. The simplest design, and a
/// yardstick for the others.
///
/// # Inexact
///
/// What a rank holds is kept exactly; a query is not answered exactly. It counts the leading local
/// hashes of which the rank holds **any** block in the tier or a faster one, wherever that block
/// stands. So an answer is never too low, and it is too high exactly if the rank holds, beside the
/// true prefix, some block with the content that comes next: in another sequence, or cut off by a
/// block that is missing. Where no rank has holes and each local hash stands for one prefix only, in
/// what is held and in what is asked, every answer is right.
///
/// # Cost
///
/// An event costs two hash lookups a block, a query O(W × D) for W ranks and depth D, more where
/// many blocks of a rank have the same content. One writer; wrap it for sharing.
#[derive(Debug, Default)]
pub struct NestedMap {
    ranks: KeyedMap<WorkerRank, Rank>,
}

#[derive(Debug, Default)]
struct Rank {
    blocks: RankBlocks,
    by_content: ByContent,
}

#[derive(Debug, Default)]
struct ByContent(KeyedMap<LocalHash, KeyedMap<SequenceHash, Tiers>>);

impl Postings for ByContent {
    fn appear(&mut self, block: Block, tier: Tier) {
        self.0.entry(block.local).or_default().entry(block.sequence).or_default().insert(tier);
    }

    fn disappear(&mut self, block: Block, tier: Tier) {
        let same_content = self.0.get_mut(&block.local).expect("the block has appeared");
        let tiers = same_content.get_mut(&block.sequence).expect("the block has appeared");
        tiers.remove(tier);
        if *tiers == Tiers::default() {
            same_content.remove(&block.sequence);
            if same_content.is_empty() {
                self.0.remove(&block.local);
            }
        }
    }
}

impl ByContent {
    /// Leading blocks of `query` whose content is held, tier by tier.
    fn depths(&self, query: &[LocalHash]) -> PerTier<u32> {
        let mut depths = PerTier::default();
        let mut fastest = 0;
        for (local, depth) in query.iter().zip(1..) {
            let Some(same_content) = self.0.get(local) else { break };
            let held_from = same_content.values().map(|tiers| tiers.fastest()).min();
            fastest = held_from.unwrap_or(Tier::ALL.len()).max(fastest);
            depths.0[fastest..].fill(depth);
        }
        depths
    }
}

impl PrefixIndex for NestedMap {
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        let state = self.ranks.entry(rank).or_default();
        let applied = state.blocks.apply(event, &mut state.by_content);
        if state.blocks.is_empty() {
            self.ranks.remove(&rank);
        }
        applied
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let matches =
            self.ranks.iter().map(|(&rank, state)| RankMatch { rank, blocks: state.by_content.depths(query) });
        MatchScores { ranks: matches.filter(|found| found.longest() > 0).collect() }
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.ranks.keys().copied().collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.ranks.get(&rank).map(|state| state.blocks.held()).unwrap_or_default()
    }

    fn clear_rank(&mut self, rank: WorkerRank) {
        self.ranks.remove(&rank);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.ranks.get(&rank).map(|state| state.blocks.size()).unwrap_or_default()
    }
}
