//! The radix tree with a lock in each node: threads query it and change different workers at once.
//!
//! The tree is that of [`RadixTree`](super::RadixTree), with the same rules for waiting, removed and
//! moved blocks. Nodes are shared by counted references instead of lying in one arena, and a node's
//! holders are bitsets.

mod find;
mod node;

use std::sync::Arc;

use flash_indexer_core::naming::{Lookup, NamingLimits, RankWriter};
use flash_indexer_core::{Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, RankSize, SharedIndex, WorkerRank};
use parking_lot::RwLock;

use self::node::{Node, RankNodes};
use super::matching::Depths;
use super::rank_table::RankTable;

/// A radix tree that threads share without a lock around it.
///
/// # Consistency
///
/// The changes of one worker come from one thread at a time. A query runs on the caller's thread and
/// locks one node at a time for reading; a change locks the nodes that it touches, a parent before
/// its child, and waits for queries at those nodes only. So a query sees each block entirely or not
/// at all, but may see an event of many blocks in part: for a rank that is being changed it can find
/// any depth that blocks held at some moment during the query add up to. What it says of other ranks
/// is exact, and with nobody writing everything is. A rank that held nothing at some moment during a
/// query may be missing from the answer. `held` and `size` take a rank between two events.
///
/// # Cost
///
/// As [`RadixTree`](super::RadixTree); a query of depth *D* takes *D* locks and counts *D* references
/// up and down. What a moved block takes along, and what follows a removed block beyond
/// [`NamingLimits::removed_blocks_max`], is looked for among all that the rank has named.
#[derive(Debug, Default)]
pub struct ConcurrentRadixTree {
    root: Arc<Node>,
    ranks: RankTable<RwLock<Lookup<Arc<Node>>>>,
    limits: NamingLimits,
}

impl ConcurrentRadixTree {
    /// An empty tree with the given bounds.
    #[must_use]
    pub fn new(limits: NamingLimits) -> Self {
        Self { root: Arc::default(), ranks: RankTable::default(), limits }
    }

    /// Nodes in the tree: distinct prefixes, and twins. Walks the whole tree.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.root.count_below()
    }
}

impl SharedIndex for ConcurrentRadixTree {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        let (slot, names) = self.ranks.get_or_insert(rank);
        let mut names = names.write();
        let placement = RankNodes { root: &self.root, slot };
        let applied = RankWriter { placement, names: &mut names, limits: self.limits }.apply(event);
        if names.is_empty() {
            self.ranks.release(slot);
        }
        applied
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let before = self.ranks.snapshot();
        let mut depths = Depths::default();
        find::find(&self.root, query, &mut depths);
        self.ranks.scores(&before, depths)
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.ranks.snapshot().ranks().collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.ranks.get(rank).map(|names| names.read().held()).unwrap_or_default()
    }

    fn clear_rank(&self, rank: WorkerRank) {
        self.apply(rank, &BlockEvent::Cleared);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.ranks.get(rank).map(|names| names.read().size()).unwrap_or_default()
    }
}

impl Drop for ConcurrentRadixTree {
    /// Takes the tree apart node by node: left to itself, each node would drop its children within
    /// its own drop, and a long chain would overflow the stack.
    fn drop(&mut self) {
        let mut pending = self.root.take_children();
        while let Some(node) = pending.pop() {
            pending.append(&mut node.take_children());
        }
    }
}
