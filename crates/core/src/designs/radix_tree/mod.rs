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

mod changes;
mod find;
mod lookup;
mod nodes;

use rustc_hash::FxHashMap;

use self::changes::RankWriter;
use self::lookup::Lookup;
use self::nodes::Nodes;
use crate::{Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, PrefixIndex, RankMatch, RankSize, WorkerRank};

/// Bounds of a [`RadixTree`].
#[derive(Debug, Clone, Copy)]
pub struct RadixTreeLimits {
    /// Blocks of one rank that may wait for a parent; further ones are refused and counted.
    pub waiting_blocks_max: usize,
    /// Removed blocks of one rank that may keep their place for blocks after them; beyond it those
    /// wait until the removed block comes back, which changes no answer.
    pub removed_blocks_max: usize,
}

impl Default for RadixTreeLimits {
    fn default() -> Self {
        Self { waiting_blocks_max: 1 << 20, removed_blocks_max: 1 << 20 }
    }
}

/// A radix tree over local hashes with a set of holders in each node.
///
/// Storing or removing a block costs a few hash lookups and a search among the node's holders; a
/// query of depth *D* costs O(D × W) for W matching ranks, and more by the twins that it meets;
/// clearing a rank costs what it holds. Single-threaded: wrap it for sharing.
#[derive(Debug, Default)]
pub struct RadixTree {
    nodes: Nodes,
    ranks: RankSlots,
    limits: RadixTreeLimits,
}

impl RadixTree {
    /// An empty tree with the given bounds.
    #[must_use]
    pub fn new(limits: RadixTreeLimits) -> Self {
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
        let slot = self.ranks.slot_or_insert(rank);
        let lookup = self.ranks.lookup_mut(slot);
        let applied = RankWriter { nodes: &mut self.nodes, lookup, slot, limits: self.limits }.apply(event);
        self.ranks.release_if_empty(slot);
        applied
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let found = find::find(&self.nodes, query).into_iter();
        let matches = found.map(|(slot, blocks)| RankMatch { rank: self.ranks.rank(slot), blocks });
        MatchScores { ranks: matches.filter(|found| found.longest() > 0).collect() }
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.ranks.iter().collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.ranks.lookup(rank).map(Lookup::held).unwrap_or_default()
    }

    fn clear_rank(&mut self, rank: WorkerRank) {
        self.apply(rank, &BlockEvent::Cleared);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.ranks.lookup(rank).map(Lookup::size).unwrap_or_default()
    }
}

/// Small numbers for ranks, so that a node's holders stay small.
#[derive(Debug, Default)]
struct RankSlots {
    slots: Vec<Option<(WorkerRank, Lookup)>>,
    by_rank: FxHashMap<WorkerRank, u32>,
    free: Vec<u32>,
}

impl RankSlots {
    fn slot_or_insert(&mut self, rank: WorkerRank) -> u32 {
        if let Some(&slot) = self.by_rank.get(&rank) {
            return slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 ranks")
        });
        self.slots[slot as usize] = Some((rank, Lookup::default()));
        self.by_rank.insert(rank, slot);
        slot
    }

    fn release_if_empty(&mut self, slot: u32) {
        if let Some((rank, lookup)) = &self.slots[slot as usize]
            && lookup.is_empty()
        {
            self.by_rank.remove(rank);
            self.slots[slot as usize] = None;
            self.free.push(slot);
        }
    }

    fn rank(&self, slot: u32) -> WorkerRank {
        self.slots[slot as usize].as_ref().expect("a holder's slot is in use").0
    }

    fn lookup_mut(&mut self, slot: u32) -> &mut Lookup {
        &mut self.slots[slot as usize].as_mut().expect("the slot is in use").1
    }

    fn lookup(&self, rank: WorkerRank) -> Option<&Lookup> {
        let slot = *self.by_rank.get(&rank)?;
        self.slots[slot as usize].as_ref().map(|(_, lookup)| lookup)
    }

    fn iter(&self) -> impl Iterator<Item = WorkerRank> {
        self.by_rank.keys().copied()
    }
}
