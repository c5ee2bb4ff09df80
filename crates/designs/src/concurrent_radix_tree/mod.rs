//! The radix tree with a lock in each node: threads query it and change different workers at the same time.
//!
//! The tree is that of [`RadixTree`](super::RadixTree), with the same rules for waiting, removed and moved blocks. Its
//! nodes are reference-counted instead of stored in one arena, and the holders of a node are bitsets.

mod find;
mod node;

use std::sync::Arc;

use flash_indexer_core::rank_blocks::{Lookup, RankBlockLimits, RankWriter};
use flash_indexer_core::{
    AppliedChanges, BlockEvent, HeldBlock, LocalHash, MatchScores, RankSize, SharedIndex, WorkerRank,
};
use parking_lot::RwLock;

use self::node::{Node, RankNodes};
use super::active_ranks::Depths;
use super::rank_table::RankTable;

/// A radix tree that threads share without one lock around it.
///
/// # Consistency
///
/// The changes of one worker come from one thread at a time. A query runs on the caller's thread and read-locks one node at a
/// time. A change write-locks the nodes that it changes, a parent before its child, and waits only for queries at those
/// nodes.
///
/// * A query sees each block of an event entirely or not at all, and can see the blocks of one event in part.
/// * The answer for a rank that changes during the query is a depth of blocks that were each held at some moment of the
///   query.
/// * The answer for any other rank is exact.
/// * A rank that held no block at some moment of the query can be missing from the answer.
/// * `held` and `size` see a rank between two events.
///
/// # Cost
///
/// The cost of [`RadixTree`](super::RadixTree). In addition, a query of depth D takes D locks and changes D reference
/// counts. Moving a block, and removing one beyond [`RankBlockLimits::removed_blocks_max`], visits every block that the rank
/// has named if blocks follow it.
#[derive(Debug, Default)]
pub struct ConcurrentRadixTree {
    root: Arc<Node>,
    ranks: RankTable<RwLock<Lookup<Arc<Node>>>>,
    limits: RankBlockLimits,
}

impl ConcurrentRadixTree {
    /// An empty tree with the given limits.
    #[must_use]
    pub fn new(limits: RankBlockLimits) -> Self {
        Self { root: Arc::default(), ranks: RankTable::default(), limits }
    }

    /// Number of nodes in the tree: distinct prefixes and twins. Walks the whole tree.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.root.count_below()
    }
}

impl SharedIndex for ConcurrentRadixTree {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
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
    /// Drops the tree node by node. A recursive drop of a long chain would overflow the stack.
    fn drop(&mut self) {
        let mut pending = self.root.take_children();
        while let Some(node) = pending.pop() {
            pending.append(&mut node.take_children());
        }
    }
}
