//! A query's walk down the tree.

use flash_indexer_core::rank_blocks::Tiers;
use flash_indexer_core::{LocalHash, PerTier, Tier};
use rustc_hash::FxHashMap;

use super::nodes::{Holder, NodeId, Nodes};

/// The deepest match of every rank that holds the first block, by slot; each slot occurs once.
pub(super) fn find(nodes: &Nodes, query: &[LocalHash]) -> Vec<(u32, PerTier<u32>)> {
    let Some(&first) = query.first() else { return Vec::new() };
    let mut branches: Vec<Branch> = nodes
        .with_twins(nodes.child(NodeId::ROOT, first))
        .map(|node| {
            let active = nodes.holders(node).iter().map(|holder| ActiveRank::new(holder.slot)).collect();
            Branch { node, depth: 0, active }
        })
        .collect();
    let mut found = FinishedRanks { branched: branches.len() > 1, finished: Vec::new() };
    while let Some(branch) = branches.pop() {
        branch.follow(nodes, query, &mut branches, &mut found);
    }
    found.into_best()
}

/// A rank that still matches.
#[derive(Debug, Clone, Copy)]
struct ActiveRank {
    slot: u32,
    /// The fastest tier such that this tier and the faster ones together hold every block so far.
    fastest: usize,
    blocks: PerTier<u32>,
}

impl ActiveRank {
    fn new(slot: u32) -> Self {
        Self { slot, fastest: 0, blocks: PerTier::default() }
    }

    /// Advances past the block at `depth`, which the rank holds in `tiers`. Returns false if the rank does not hold the
    /// prefix in all tiers together.
    fn advance(&mut self, tiers: Tiers, depth: usize) -> bool {
        self.fastest = self.fastest.max(tiers.fastest()).min(Tier::ALL.len());
        for blocks in &mut self.blocks.0[self.fastest..] {
            *blocks = depth as u32 + 1;
        }
        self.fastest < Tier::ALL.len()
    }
}

/// A node that the query has reached, and the ranks that match up to its parent, ordered by slot.
struct Branch {
    node: NodeId,
    depth: usize,
    active: Vec<ActiveRank>,
}

impl Branch {
    /// Walks down while a rank matches. Each twin on the way becomes a branch with the active ranks that hold the twin.
    fn follow(self, nodes: &Nodes, query: &[LocalHash], branches: &mut Vec<Branch>, found: &mut FinishedRanks) {
        let Self { mut node, mut depth, mut active } = self;
        loop {
            advance_all(&mut active, nodes.holders(node), depth, &mut found.finished);
            depth += 1;
            let next = query.get(depth).and_then(|&local| nodes.child(node, local));
            let Some(next) = next.filter(|_| !active.is_empty()) else { break };
            for twin in nodes.with_twins(Some(next)).skip(1) {
                found.branched = true;
                let active = intersect(&active, nodes.holders(twin));
                branches.push(Branch { node: twin, depth, active });
            }
            node = next;
        }
        found.finished.append(&mut active);
    }
}

/// Advances the active ranks past the block at `depth`. A rank that does not hold it moves to `finished`.
fn advance_all(active: &mut Vec<ActiveRank>, holders: &[Holder], depth: usize, finished: &mut Vec<ActiveRank>) {
    let mut holders = holders.iter().peekable();
    active.retain_mut(|rank| {
        while holders.next_if(|holder| holder.slot < rank.slot).is_some() {}
        let held = holders.next_if(|holder| holder.slot == rank.slot);
        let still_matches = rank.advance(held.map_or(Tiers::default(), |holder| holder.tiers), depth);
        if !still_matches {
            finished.push(*rank);
        }
        still_matches
    });
}

/// The active ranks that are holders.
fn intersect(active: &[ActiveRank], holders: &[Holder]) -> Vec<ActiveRank> {
    let mut active = active.iter().peekable();
    let mut common = Vec::new();
    for holder in holders {
        while active.next_if(|rank| rank.slot < holder.slot).is_some() {}
        common.extend(active.next_if(|rank| rank.slot == holder.slot));
    }
    common
}

/// The ranks that no longer match, with their depths.
struct FinishedRanks {
    finished: Vec<ActiveRank>,
    /// Whether a rank can occur in `finished` more than once.
    branched: bool,
}

impl FinishedRanks {
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
