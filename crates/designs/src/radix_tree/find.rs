//! How a query goes down the tree.

use flash_indexer_core::naming::Tiers;
use flash_indexer_core::{LocalHash, PerTier, Tier};
use rustc_hash::FxHashMap;

use super::nodes::{Holder, NodeId, Nodes};

/// Deepest matches by slot, each slot once.
pub(super) fn find(nodes: &Nodes, query: &[LocalHash]) -> Vec<(u32, PerTier<u32>)> {
    let Some(&first) = query.first() else { return Vec::new() };
    let mut branches: Vec<Branch> = nodes
        .with_twins(nodes.child(NodeId::ROOT, first))
        .map(|node| {
            let matching = nodes.holders(node).iter().map(|holder| Matching::new(holder.slot)).collect();
            Branch { node, depth: 0, matching }
        })
        .collect();
    let mut found = Found { branched: branches.len() > 1, finished: Vec::new() };
    while let Some(branch) = branches.pop() {
        branch.follow(nodes, query, &mut branches, &mut found);
    }
    found.into_best()
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

    /// Takes in the tiers that hold the block at `depth`; false when even all tiers together have
    /// lost the prefix.
    fn advance(&mut self, tiers: Tiers, depth: usize) -> bool {
        self.fastest = self.fastest.max(tiers.fastest()).min(Tier::ALL.len());
        for blocks in &mut self.blocks.0[self.fastest..] {
            *blocks = depth as u32 + 1;
        }
        self.fastest < Tier::ALL.len()
    }
}

/// A node that a query has reached and the ranks that match as far as its parent, ordered by slot.
struct Branch {
    node: NodeId,
    depth: usize,
    matching: Vec<Matching>,
}

impl Branch {
    /// Walks down until no rank matches any more. Twins on the way become branches, each with those
    /// ranks only that can go on there.
    fn follow(self, nodes: &Nodes, query: &[LocalHash], branches: &mut Vec<Branch>, found: &mut Found) {
        let Self { mut node, mut depth, mut matching } = self;
        loop {
            advance_all(&mut matching, nodes.holders(node), depth, &mut found.finished);
            depth += 1;
            let next = query.get(depth).and_then(|&local| nodes.child(node, local));
            let Some(next) = next.filter(|_| !matching.is_empty()) else { break };
            for twin in nodes.with_twins(Some(next)).skip(1) {
                found.branched = true;
                let there = among(&matching, nodes.holders(twin));
                branches.push(Branch { node: twin, depth, matching: there });
            }
            node = next;
        }
        found.finished.append(&mut matching);
    }
}

/// Takes the holders of the block at `depth` into account; ranks that have lost the prefix are finished.
fn advance_all(matching: &mut Vec<Matching>, holders: &[Holder], depth: usize, finished: &mut Vec<Matching>) {
    let mut holders = holders.iter().peekable();
    matching.retain_mut(|rank| {
        while holders.next_if(|holder| holder.slot < rank.slot).is_some() {}
        let held = holders.next_if(|holder| holder.slot == rank.slot);
        let goes_on = rank.advance(held.map_or(Tiers::default(), |holder| holder.tiers), depth);
        if !goes_on {
            finished.push(*rank);
        }
        goes_on
    });
}

/// The matching ranks that are among the holders.
fn among(matching: &[Matching], holders: &[Holder]) -> Vec<Matching> {
    let mut matching = matching.iter().peekable();
    let mut common = Vec::new();
    for holder in holders {
        while matching.next_if(|rank| rank.slot < holder.slot).is_some() {}
        common.extend(matching.next_if(|rank| rank.slot == holder.slot));
    }
    common
}

/// Ranks that a query has done with.
struct Found {
    finished: Vec<Matching>,
    /// Whether one rank can be among them more than once.
    branched: bool,
}

impl Found {
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
