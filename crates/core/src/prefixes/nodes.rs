//! Tree of a rank's blocks, each with the slowest tier needed for its whole prefix.

use std::collections::hash_map::Entry;

use smallvec::SmallVec;

use super::Prefix;
use crate::hashing::next_sequence_hash;
use crate::keyed::KeyedMap;
use crate::rank_blocks::{Lookup, Placement, Tiers};
use crate::{LocalHash, SequenceHash, Tier};

/// Number of a node; none is the parent of the first block of a sequence.
pub(super) type NodeId = Option<u32>;

/// Number of a tier; the number of tiers if the prefix is not held.
type Level = usize;
const NOT_HELD: Level = Tier::ALL.len();

/// The node of one sequence hash. Nodes with the same parent are linked to each other.
#[derive(Debug)]
struct Node {
    prefix: Prefix,
    sequence: SequenceHash,
    parent: NodeId,
    child: NodeId,
    next: NodeId,
    previous: NodeId,
    tiers: Tiers,
    level: u8,
}

/// The nodes of one prefix: nearly always one; several if the rank has several sequence hashes for it.
type NodesAtPrefix = SmallVec<[u32; 1]>;

#[derive(Debug, Default)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
    free: Vec<u32>,
    by_prefix: KeyedMap<SequenceHash, NodesAtPrefix>,
}

impl Nodes {
    /// The nodes, with a callback for changed prefixes.
    pub(super) fn reporting_to<'a, F: FnMut(Prefix)>(&'a mut self, changed: &'a mut F) -> ChangeReporter<'a, F> {
        ChangeReporter { nodes: self, changed }
    }

    pub(super) fn slowest_tier(&self, prefix: SequenceHash) -> Option<Tier> {
        let levels = self.by_prefix.get(&prefix)?.iter().map(|&at| self.level(Some(at)));
        Tier::ALL.get(levels.min()?).copied()
    }

    pub(super) fn held(&self) -> impl Iterator<Item = Prefix> {
        let held = |at_prefix: &&NodesAtPrefix| at_prefix.iter().any(|&at| self.level(Some(at)) < NOT_HELD);
        self.by_prefix.values().filter(held).map(|at_prefix| self.node(at_prefix[0]).prefix)
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    fn level(&self, at: NodeId) -> Level {
        at.map_or(0, |at| self.node(at).level.into())
    }

    /// The level of a node, given that its parent's level is up to date.
    fn level_of(&self, at: u32) -> u8 {
        let node = self.node(at);
        // At most the number of tiers.
        node.tiers.fastest().min(NOT_HELD).max(self.level(node.parent)) as u8
    }

    fn children(&self, at: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.node(at).child, |&child| self.node(child).next)
    }

    fn add(&mut self, node: Node) -> u32 {
        let (parent, hash) = (node.parent, node.prefix.hash);
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("a rank has fewer than four billion blocks")
            }
        };
        if let Some(parent) = parent {
            let next = self.node_mut(parent).child.replace(at);
            self.node_mut(at).next = next;
            if let Some(next) = next {
                self.node_mut(next).previous = Some(at);
            }
        }
        self.by_prefix.entry(hash).or_default().push(at);
        at
    }

    /// Removes a node without children.
    fn remove(&mut self, at: u32) {
        let &Node { parent, next, previous, prefix, .. } = self.node(at);
        match (previous, parent) {
            (Some(previous), _) => self.node_mut(previous).next = next,
            (None, Some(parent)) => self.node_mut(parent).child = next,
            (None, None) => {}
        }
        if let Some(next) = next {
            self.node_mut(next).previous = previous;
        }
        if let Entry::Occupied(mut twins) = self.by_prefix.entry(prefix.hash) {
            twins.get_mut().retain(|twin| *twin != at);
            if twins.get().is_empty() {
                twins.remove();
            }
        }
        self.free.push(at);
    }
}

/// Nodes with a callback that receives every changed prefix.
pub(super) struct ChangeReporter<'a, F> {
    nodes: &'a mut Nodes,
    changed: &'a mut F,
}

impl<F: FnMut(Prefix)> ChangeReporter<'_, F> {
    /// Updates the level of a node and of its descendants as far as it affects them.
    fn update(&mut self, at: u32) {
        let mut pending = vec![at];
        while let Some(at) = pending.pop() {
            let level = self.nodes.level_of(at);
            if std::mem::replace(&mut self.nodes.node_mut(at).level, level) != level {
                (self.changed)(self.nodes.node(at).prefix);
                pending.extend(self.nodes.children(at));
            }
        }
    }
}

impl<F: FnMut(Prefix)> Placement for ChangeReporter<'_, F> {
    type Slot = NodeId;

    fn root(&self) -> NodeId {
        None
    }

    fn join(&mut self, &above: &NodeId, local: LocalHash, sequence: SequenceHash, tiers: Tiers) -> NodeId {
        let above_prefix = above.map(|above| self.nodes.node(above).prefix);
        let prefix = Prefix {
            first: above_prefix.map_or(local, |above| above.first),
            hash: next_sequence_hash(above_prefix.map(|above| above.hash), local),
        };
        let level = NOT_HELD as u8;
        let node = Node { prefix, sequence, parent: above, child: None, next: None, previous: None, tiers, level };
        let at = self.nodes.add(node);
        self.update(at);
        Some(at)
    }

    fn hold(&mut self, &place: &NodeId, tier: Tier) {
        if let Some(at) = place {
            self.nodes.node_mut(at).tiers.insert(tier);
            self.update(at);
        }
    }

    fn release(&mut self, &place: &NodeId, tier: Tier) {
        if let Some(at) = place {
            self.nodes.node_mut(at).tiers.remove(tier);
            self.update(at);
        }
    }

    fn leave(&mut self, &place: &NodeId) {
        if let Some(at) = place {
            let node = self.nodes.node(at);
            if usize::from(node.level) < NOT_HELD {
                (self.changed)(node.prefix);
            }
            self.nodes.remove(at);
        }
    }

    fn below(&self, &place: &NodeId, _: SequenceHash, _: &Lookup<NodeId>) -> Vec<(NodeId, SequenceHash)> {
        let Some(at) = place else { return Vec::new() };
        let mut below: Vec<u32> = self.nodes.children(at).collect();
        let mut visited = 0;
        while let Some(&at) = below.get(visited) {
            below.extend(self.nodes.children(at));
            visited += 1;
        }
        below.into_iter().map(|at| (Some(at), self.nodes.node(at).sequence)).collect()
    }
}
