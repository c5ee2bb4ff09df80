//! The nested map: for each rank, a map from local hash to the sequence hashes of its blocks.
//!
//! ```text
//!  rank 0 ─▶ A1 ─▶ {0x11}          a query A1 C3 looks up A1 and C3 in the map of each rank,
//!            C3 ─▶ {0x12, 0x47}    for all parents of the blocks
//!  rank 1 ─▶ A1 ─▶ {0x71}
//! ```

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::rank_blocks::Tiers;
use flash_indexer_core::{
    AppliedChanges, Block, BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, PrefixIndex, RankMatch, RankSize,
    SequenceHash, Tier, WorkerRank,
};

use super::rank_blocks::{Postings, RankBlocks};

/// For each rank, a map from local hash to the rank's blocks with that local hash. The simplest design.
///
/// # Inexact
///
/// The state of a rank is exact; an answer is not. A query counts the leading local hashes for which the rank holds **any**
/// block in the tier or a faster one, under any prefix. So an answer is never too low. It is too high exactly if the rank
/// holds a block with the local hash after the true prefix, in another sequence or after a missing block. If each local
/// hash, in the index and in the query, stands for one prefix only, and no rank holds a block without the blocks before it,
/// every answer is exact.
///
/// # Cost
///
/// An event costs two hash lookups a block. A query of depth D over W ranks costs O(W × D), and more where many blocks of a
/// rank share a local hash. One writer at a time; [`LockedIndex`](flash_indexer_core::LockedIndex) shares it.
#[derive(Debug, Default)]
pub struct NestedMap {
    ranks: KeyedMap<WorkerRank, Rank>,
}

#[derive(Debug, Default)]
struct Rank {
    blocks: RankBlocks,
    by_local: ByLocalHash,
}

#[derive(Debug, Default)]
struct ByLocalHash(KeyedMap<LocalHash, KeyedMap<SequenceHash, Tiers>>);

impl Postings for ByLocalHash {
    fn insert(&mut self, block: Block, tier: Tier) {
        self.0.entry(block.local).or_default().entry(block.sequence).or_default().insert(tier);
    }

    fn remove(&mut self, block: Block, tier: Tier) {
        let same_local = self.0.get_mut(&block.local).expect("the block was inserted");
        let tiers = same_local.get_mut(&block.sequence).expect("the block was inserted");
        tiers.remove(tier);
        if *tiers == Tiers::default() {
            same_local.remove(&block.sequence);
            if same_local.is_empty() {
                self.0.remove(&block.local);
            }
        }
    }
}

impl ByLocalHash {
    /// Number of leading local hashes of `query` that the rank holds, tier by tier.
    fn depths(&self, query: &[LocalHash]) -> PerTier<u32> {
        let mut depths = PerTier::default();
        let mut fastest = 0;
        for (local, depth) in query.iter().zip(1..) {
            let Some(same_local) = self.0.get(local) else { break };
            let held_from = same_local.values().map(|tiers| tiers.fastest()).min();
            fastest = held_from.unwrap_or(Tier::ALL.len()).max(fastest);
            depths.0[fastest..].fill(depth);
        }
        depths
    }
}

impl PrefixIndex for NestedMap {
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        let state = self.ranks.entry(rank).or_default();
        let applied = state.blocks.apply(event, &mut state.by_local);
        if state.blocks.is_empty() {
            self.ranks.remove(&rank);
        }
        applied
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let matches = self.ranks.iter().map(|(&rank, state)| RankMatch { rank, blocks: state.by_local.depths(query) });
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
