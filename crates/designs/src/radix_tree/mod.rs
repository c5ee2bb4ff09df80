//! The radix tree: one node for each distinct prefix, and for each rank a lookup from its own
//! sequence hashes to nodes.
//!
//! ```text
//!  root ──A1──▶ node 1  {rank 0, rank 1}      rank 0: 0x11 → node 1, 0x12 → node 2
//!                 ├─C3─▶ node 2  {rank 0}     rank 1: 0x71 → node 1, 0x72 → node 3
//!                 └─D4─▶ node 3  {rank 1}
//! ```
//!
//! A query follows local hashes from the root and drops ranks as it goes. An event goes through its
//! rank's lookup: local hashes repeat in different places, sequence hashes do not. Two ranks may
//! name one node differently; one rank that has two names for one prefix gets two nodes, twins.
//!
//! Exact under any event order. A block whose parent the rank has not named is set aside until the
//! parent is named; a block removed while blocks after it are held keeps its place in the lookup,
//! so that they stay where they are and it can come back; a hash that changes its meaning takes what
//! follows it along.

mod find;
mod nodes;

use flash_indexer_core::naming::{Lookup, NamingLimits, RankWriter};
use flash_indexer_core::{
    Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, PrefixIndex, RankMatch, RankSize, WorkerRank,
};

use self::nodes::{NodeId, Nodes, RankNodes};
use super::rank_slots::RankSlots;

/// A radix tree over local hashes with a set of holders in each node.
///
/// Storing or removing a block costs a few hash lookups and a search among the node's holders; a
/// query of depth *D* costs O(D × W) for W matching ranks, and more by the twins that it meets;
/// clearing a rank costs what it holds. Single-threaded: wrap it for sharing.
#[derive(Debug, Default)]
pub struct RadixTree {
    nodes: Nodes,
    ranks: RankSlots<Lookup<NodeId>>,
    limits: NamingLimits,
}

impl RadixTree {
    /// An empty tree with the given bounds.
    #[must_use]
    pub fn new(limits: NamingLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Nodes in the tree: distinct prefixes, and twins.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }
}

impl PrefixIndex for RadixTree {
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> Applied {
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
        let rank_of = |slot| self.ranks.rank(slot).expect("a holder's slot is in use");
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
