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
//! so that they stay where they are and it can come back; a hash that changes its meaning makes the
//! rank be rebuilt from what it holds.

mod lookup;
mod nodes;

use rustc_hash::FxHashMap;

use self::lookup::{Entry, Lookup, Place};
use self::nodes::{Holder, NodeId, Nodes};
use crate::{
    Applied, Block, BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, PrefixIndex, RankMatch, RankSize,
    SequenceHash, Tier, WorkerRank, stored_events,
};

/// Bounds of a [`RadixTree`].
#[derive(Debug, Clone, Copy)]
pub struct RadixTreeLimits {
    /// Blocks of one rank that may wait for a parent at a time; further ones are refused.
    pub waiting_blocks_max: usize,
}

impl Default for RadixTreeLimits {
    fn default() -> Self {
        Self { waiting_blocks_max: 1 << 20 }
    }
}

/// A radix tree over local hashes with a set of holders in each node.
///
/// Storing or removing a block costs a few hash lookups; a query of depth *D* costs O(D × W) for W
/// matching ranks; clearing a rank costs what it holds. Single-threaded: wrap it for sharing.
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

    /// Distinct prefixes in the tree.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    fn store(&mut self, slot: u32, tier: Tier, parent: Option<SequenceHash>, block: Block) -> Applied {
        let lookup = self.ranks.lookup_mut(slot);
        let Some(entry) = lookup.get_mut(block.sequence) else {
            return self.insert(slot, tier, parent, block);
        };
        if entry.parent != parent || entry.local != block.local {
            return self.replace(slot, tier, parent, block);
        }
        self.add_copy(slot, tier, block.sequence)
    }

    /// One more copy of a block whose meaning is known.
    fn add_copy(&mut self, slot: u32, tier: Tier, sequence: SequenceHash) -> Applied {
        let lookup = self.ranks.lookup_mut(slot);
        let entry = lookup.get_mut(sequence).expect("the caller found the entry");
        entry.copies[tier] += 1;
        if entry.copies[tier] > 1 {
            return Applied { duplicate: 1, ..Applied::default() };
        }
        let place = entry.place;
        let newly_held = entry.copies.0.iter().sum::<u32>() == 1;
        lookup.count_held(tier, newly_held);
        if let Place::At { node, .. } = place {
            self.nodes.hold(node, slot, tier);
        }
        Applied { stored: 1, ..Applied::default() }
    }

    /// The first copy of a block that the rank has not named before.
    fn insert(&mut self, slot: u32, tier: Tier, parent: Option<SequenceHash>, block: Block) -> Applied {
        let lookup = self.ranks.lookup_mut(slot);
        let above = match parent {
            None => Some(NodeId::ROOT),
            Some(parent) => lookup.node_of(parent),
        };
        let mut copies = PerTier::default();
        copies[tier] = 1;
        let entry = Entry { parent, local: block.local, copies, place: Place::Waiting };
        if above.is_none() && lookup.waiting_count() >= self.limits.waiting_blocks_max {
            return Applied { refused: 1, ..Applied::default() };
        }
        lookup.insert_waiting(block.sequence, entry);
        lookup.count_held(tier, true);
        match above {
            None => Applied { stored: 1, waiting: 1, ..Applied::default() },
            Some(above) => {
                self.place(slot, above, block.sequence);
                Applied { stored: 1, ..Applied::default() }
            }
        }
    }

    /// Gives a waiting block its node under `above`, and then whatever waited for it.
    fn place(&mut self, slot: u32, above: NodeId, sequence: SequenceHash) {
        let lookup = self.ranks.lookup_mut(slot);
        let mut pending = vec![(above, sequence)];
        while let Some((above, sequence)) = pending.pop() {
            let entry = lookup.get_mut(sequence).expect("waiting blocks have entries");
            let node = self.nodes.join_child(above, entry.local, slot);
            for (tier, &copies) in entry.copies.iter() {
                if copies > 0 {
                    self.nodes.hold(node, slot, tier);
                }
            }
            lookup.settle(sequence, node);
            pending.extend(lookup.take_followers(sequence).into_iter().map(|follower| (node, follower)));
        }
    }

    /// A store that contradicts what the rank's hash meant: the rank is rebuilt from what it holds,
    /// with the new meaning in place of the old. Costs what the rank holds; engines whose hashes
    /// follow from their content never cause it.
    fn replace(&mut self, slot: u32, tier: Tier, parent: Option<SequenceHash>, block: Block) -> Applied {
        let mut held = self.ranks.lookup_mut(slot).held();
        let before = held.len();
        held.retain(|entry| entry.sequence != block.sequence);
        let moved = (before - held.len()) as u64;
        let mut copies = PerTier::default();
        copies[tier] = 1;
        held.push(HeldBlock { sequence: block.sequence, parent, local: block.local, copies });
        self.clear_slot(slot);
        let mut rebuilt = Applied::default();
        for event in stored_events(held) {
            rebuilt += self.apply_to(slot, &event);
        }
        let waiting = self.ranks.lookup_mut(slot).is_waiting(block.sequence);
        Applied { stored: 1, moved, refused: rebuilt.refused, waiting: u64::from(waiting), ..Applied::default() }
    }

    fn copy(&mut self, slot: u32, tier: Tier, sequence: SequenceHash) -> Applied {
        match self.ranks.lookup_mut(slot).get_mut(sequence) {
            Some(entry) if !entry.copies.is_zero() => self.add_copy(slot, tier, sequence),
            _ => Applied { unknown: 1, ..Applied::default() },
        }
    }

    fn remove(&mut self, slot: u32, tier: Tier, sequence: SequenceHash) -> Applied {
        let lookup = self.ranks.lookup_mut(slot);
        let Some(entry) = lookup.get_mut(sequence).filter(|entry| entry.copies[tier] > 0) else {
            return Applied { unknown: 1, ..Applied::default() };
        };
        entry.copies[tier] -= 1;
        if entry.copies[tier] == 0 {
            let (place, last_copy) = (entry.place, entry.copies.is_zero());
            lookup.count_dropped(tier, last_copy);
            if let Place::At { node, .. } = place {
                self.nodes.release(node, slot, tier);
            }
            if last_copy {
                for node in lookup.forget_unused(sequence) {
                    self.nodes.leave(node, slot);
                }
            }
        }
        Applied { removed: 1, ..Applied::default() }
    }

    /// Forgets all that a slot holds, and says how many copies that were.
    fn clear_slot(&mut self, slot: u32) -> u64 {
        let mut copies = 0;
        for entry in self.ranks.lookup_mut(slot).drain() {
            copies += entry.copies.0.into_iter().map(u64::from).sum::<u64>();
            if let Place::At { node, .. } = entry.place {
                self.nodes.leave(node, slot);
            }
        }
        copies
    }

    fn apply_to(&mut self, slot: u32, event: &BlockEvent) -> Applied {
        let mut applied = Applied::default();
        match event {
            BlockEvent::Stored { tier, parent, blocks } => {
                let mut parent = *parent;
                for &block in blocks {
                    applied += self.store(slot, *tier, parent, block);
                    parent = Some(block.sequence);
                }
            }
            BlockEvent::Copied { tier, blocks } => {
                for &sequence in blocks {
                    applied += self.copy(slot, *tier, sequence);
                }
            }
            BlockEvent::Removed { tier, blocks } => {
                for &sequence in blocks {
                    applied += self.remove(slot, *tier, sequence);
                }
            }
            BlockEvent::Cleared => applied.removed = self.clear_slot(slot),
        }
        applied
    }
}

/// A node that a query has reached and the ranks that still match there.
struct Branch {
    node: NodeId,
    depth: usize,
    matching: Vec<Matching>,
}

/// Ranks that a query has done with.
#[derive(Default)]
struct Found {
    finished: Vec<Matching>,
    branched: bool,
}

impl Found {
    /// Each slot once, with its deepest match.
    fn into_best(self) -> Vec<(u32, PerTier<u32>)> {
        if !self.branched {
            return self.finished.into_iter().map(|found| (found.slot, found.blocks)).collect();
        }
        let mut best: FxHashMap<u32, PerTier<u32>> = FxHashMap::default();
        for found in self.finished {
            let blocks = best.entry(found.slot).or_default();
            for (best, depth) in blocks.0.iter_mut().zip(found.blocks.0) {
                *best = depth.max(*best);
            }
        }
        best.into_iter().collect()
    }
}

impl RadixTree {
    /// Walks down from `branch` until no rank matches any more. Twins on the way become branches.
    fn follow(&self, branch: Branch, query: &[LocalHash], branches: &mut Vec<Branch>, found: &mut Found) {
        let Branch { mut node, mut depth, mut matching } = branch;
        loop {
            keep_holders(&mut matching, self.nodes.holders(node), depth, &mut found.finished);
            depth += 1;
            let next = query.get(depth).and_then(|&local| self.nodes.child(node, local));
            let Some(next) = next.filter(|_| !matching.is_empty()) else { break };
            let mut twin = self.nodes.twin(next);
            while let Some(node) = twin {
                found.branched = true;
                branches.push(Branch { node, depth, matching: matching.clone() });
                twin = self.nodes.twin(node);
            }
            node = next;
        }
        found.finished.append(&mut matching);
    }
}

/// Takes the holders of the block at `depth` into account; ranks that have lost the prefix are finished.
fn keep_holders(matching: &mut Vec<Matching>, holders: &[Holder], depth: usize, finished: &mut Vec<Matching>) {
    let mut holders = holders.iter().peekable();
    matching.retain_mut(|rank| {
        while holders.next_if(|holder| holder.rank < rank.slot).is_some() {}
        let held = holders.next_if(|holder| holder.rank == rank.slot);
        let goes_on = rank.advance(held.map_or(0, |holder| holder.tiers), depth as u32);
        if !goes_on {
            finished.push(*rank);
        }
        goes_on
    });
}

impl PrefixIndex for RadixTree {
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        let slot = self.ranks.slot_or_insert(rank);
        let applied = self.apply_to(slot, event);
        self.ranks.release_if_empty(slot);
        applied
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let mut found = Found::default();
        let mut branches = Vec::new();
        if let Some(&first) = query.first() {
            let mut start = self.nodes.child(NodeId::ROOT, first);
            while let Some(node) = start {
                let matching = self.nodes.holders(node).iter().map(|holder| Matching::new(holder.rank)).collect();
                branches.push(Branch { node, depth: 0, matching });
                start = self.nodes.twin(node);
            }
        }
        found.branched = branches.len() > 1;
        while let Some(branch) = branches.pop() {
            self.follow(branch, query, &mut branches, &mut found);
        }
        let matches = found.into_best().into_iter();
        let matches = matches.map(|(slot, blocks)| RankMatch { rank: self.ranks.rank(slot), blocks });
        MatchScores { ranks: matches.filter(|found| found.longest() > 0).collect() }
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.ranks.iter().map(|(rank, _)| rank).collect()
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

/// A rank that a query has not lost yet.
#[derive(Debug, Clone, Copy)]
struct Matching {
    slot: u32,
    /// Fastest tier up to which the rank, using it and the faster ones, still holds everything.
    fastest: usize,
    blocks: PerTier<u32>,
}

impl Matching {
    fn new(slot: u32) -> Self {
        Self { slot, fastest: 0, blocks: PerTier::default() }
    }

    /// Takes in the tiers (bit *t* for tier *t*) that hold the block at `depth`; false when even
    /// all tiers together have lost the prefix.
    fn advance(&mut self, tier_mask: u8, depth: u32) -> bool {
        let held_from = tier_mask.trailing_zeros() as usize;
        self.fastest = self.fastest.max(held_from).min(Tier::ALL.len());
        for blocks in &mut self.blocks.0[self.fastest..] {
            *blocks = depth + 1;
        }
        self.fastest < Tier::ALL.len()
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

    fn iter(&self) -> impl Iterator<Item = (WorkerRank, &Lookup)> {
        self.slots.iter().flatten().map(|(rank, lookup)| (*rank, lookup))
    }
}
