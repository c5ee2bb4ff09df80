//! The radix tree: one node for each distinct prefix, and for each rank a lookup from its sequence hashes to nodes.
//!
//! ```text
//!  root ──A1──▶ node 1  {rank 0, rank 1}      rank 0: 0x11 → node 1, 0x12 → node 2
//!                 ├─C3─▶ node 2  {rank 0}     rank 1: 0x71 → node 1, 0x72 → node 3
//!                 └─D4─▶ node 3  {rank 1}
//! ```
//!
//! A query follows local hashes from the root and drops the ranks that do not hold a node. An event finds its nodes by the
//! lookup of its rank, because a local hash occurs under many prefixes and a sequence hash under one. Two ranks can name
//! one node differently. A rank that has two names for one prefix gets two nodes, called twins.
//!
//! The tree is exact under any order of events. A block waits until its rank has named its parent. A removed block keeps
//! its node while its rank holds blocks after it, so that they stay in place and the block can be stored again. A sequence
//! hash that is stored with another parent or local hash moves, and the blocks after it move with it.

mod find;
mod nodes;

use flash_indexer_core::rank_blocks::{Lookup, RankBlockLimits, RankWriter};
use flash_indexer_core::{
    AppliedChanges, BlockEvent, HeldBlock, LocalHash, MatchScores, PrefixIndex, RankMatch, RankSize, WorkerRank,
};

use self::nodes::{NodeId, Nodes, RankNodes};
use super::rank_slots::RankSlots;

/// A radix tree over local hashes, with the holders of a block in its node.
///
/// # Cost
///
/// Storing or removing a block costs a few hash lookups and a binary search in the node's holders. A query of depth D costs
/// O(D × W) for W matching ranks, and more if the prompt has twins. Clearing a rank costs the blocks that it holds. One
/// writer at a time; [`LockedIndex`](flash_indexer_core::LockedIndex) shares the tree.
#[derive(Debug, Default)]
pub struct RadixTree {
    nodes: Nodes,
    ranks: RankSlots<Lookup<NodeId>>,
    limits: RankBlockLimits,
}

impl RadixTree {
    /// An empty tree with the given limits.
    #[must_use]
    pub fn new(limits: RankBlockLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Number of nodes in the tree: distinct prefixes and twins.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }
}

impl PrefixIndex for RadixTree {
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        let slot = self.ranks.slot(rank).unwrap_or_else(|| self.ranks.insert(rank, Lookup::default()));
        let names = self.ranks.state_mut(slot);
        let placement = RankNodes { nodes: &mut self.nodes, slot };
        let applied = RankWriter { placement, names, limits: self.limits }.apply(event);
        if names.is_empty() {
            self.ranks.release(slot);
        }
        applied
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let found = find::find(&self.nodes, query).into_iter();
        let rank_of = |slot| self.ranks.rank(slot).expect("the slot of a holder is in use");
        let matches = found.map(|(slot, blocks)| RankMatch { rank: rank_of(slot), blocks });
        MatchScores { ranks: matches.filter(|found| found.longest() > 0).collect() }
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.ranks.ranks().collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.ranks.state(rank).map(Lookup::held).unwrap_or_default()
    }

    fn clear_rank(&mut self, rank: WorkerRank) {
        self.apply(rank, &BlockEvent::Cleared);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.ranks.state(rank).map(Lookup::size).unwrap_or_default()
    }
}
