//! The nodes of the tree, in one arena and linked by number.

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::rank_blocks::{Lookup, Placement, Tiers};
use flash_indexer_core::{LocalHash, SequenceHash, Tier};

/// Number of a node. It is reused after the node is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeId(u32);

impl NodeId {
    /// The node before the first block of every sequence. It stands for no block.
    pub(super) const ROOT: Self = Self(0);
}

/// A rank that has named a node's block. A rank has one name for a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    pub(super) slot: u32,
    /// The tiers in which the rank holds the block; none if the block was removed while the rank holds blocks after it.
    pub(super) tiers: Tiers,
    /// The rank's sequence hash of the block.
    pub(super) sequence: SequenceHash,
}

#[derive(Debug)]
struct Node {
    parent: NodeId,
    local: LocalHash,
    /// The first child for each local hash. Other children with that local hash are its twins.
    children: KeyedMap<LocalHash, NodeId>,
    /// The list of other nodes with the same parent and local hash. They exist only where one rank has several names for one
    /// prefix, so that the blocks after each name stay apart.
    next_twin: Option<NodeId>,
    previous_twin: Option<NodeId>,
    /// Ordered by slot.
    holders: Vec<Holder>,
}

impl Node {
    fn new(parent: NodeId, local: LocalHash) -> Self {
        Self { parent, local, children: KeyedMap::default(), next_twin: None, previous_twin: None, holders: Vec::new() }
    }
}

/// The arena of nodes. A node exists while it has holders or children.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
}

impl Default for Nodes {
    fn default() -> Self {
        Self { nodes: vec![Node::new(NodeId::ROOT, LocalHash(0))], free: Vec::new() }
    }
}

impl Nodes {
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len() - 1
    }

    /// The first child with this local hash.
    pub(super) fn child(&self, node: NodeId, local: LocalHash) -> Option<NodeId> {
        self.at(node).children.get(&local).copied()
    }

    /// A node and the twins after it.
    pub(super) fn with_twins(&self, first: Option<NodeId>) -> impl Iterator<Item = NodeId> {
        std::iter::successors(first, |&node| self.at(node).next_twin)
    }

    pub(super) fn holders(&self, node: NodeId) -> &[Holder] {
        &self.at(node).holders
    }

    /// The children of `node` that the rank has named. Visits the children of all ranks.
    fn children_of(&self, node: NodeId, slot: u32) -> impl Iterator<Item = (NodeId, SequenceHash)> {
        let children = self.at(node).children.values().flat_map(|&first| self.with_twins(Some(first)));
        children.filter_map(move |child| {
            let holders = self.holders(child);
            let at = holders.binary_search_by_key(&slot, |holder| holder.slot).ok()?;
            Some((child, holders[at].sequence))
        })
    }

    /// Adds a holder to a child of `node`: to the first child with that local hash, or to a new twin if the rank has named
    /// the first child already. It does not search the other twins, so its cost does not depend on their number.
    fn join_child(&mut self, node: NodeId, local: LocalHash, holder: Holder) -> NodeId {
        let first = self.child(node, local);
        if let Some(first) = first {
            let holders = &mut self.at_mut(first).holders;
            if let Err(at) = holders.binary_search_by_key(&holder.slot, |holder| holder.slot) {
                holders.insert(at, holder);
                return first;
            }
        }
        let mut new = Node::new(node, local);
        new.holders.push(holder);
        new.next_twin = first;
        let id = match self.free.pop() {
            Some(id) => {
                *self.at_mut(id) = new;
                id
            }
            None => {
                self.nodes.push(new);
                NodeId(u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 nodes"))
            }
        };
        if let Some(first) = first {
            self.at_mut(first).previous_twin = Some(id);
        }
        self.at_mut(node).children.insert(local, id);
        id
    }

    /// Removes a rank and its name from a node. Then drops the node and its ancestors while they have neither holders nor
    /// children.
    fn leave(&mut self, node: NodeId, slot: u32) {
        let holders = &mut self.at_mut(node).holders;
        let at = holders.binary_search_by_key(&slot, |holder| holder.slot).expect("the rank is a holder");
        holders.remove(at);
        let mut id = node;
        while id != NodeId::ROOT && self.at(id).holders.is_empty() && self.at(id).children.is_empty() {
            let parent = self.at(id).parent;
            self.unlink(id);
            self.free.push(id);
            id = parent;
        }
    }

    /// Removes a node from its parent's children and its list of twins, and empties it.
    fn unlink(&mut self, id: NodeId) {
        let node = std::mem::replace(self.at_mut(id), Node::new(NodeId::ROOT, LocalHash(0)));
        if let Some(next) = node.next_twin {
            self.at_mut(next).previous_twin = node.previous_twin;
        }
        match (node.previous_twin, node.next_twin) {
            (Some(previous), next) => self.at_mut(previous).next_twin = next,
            (None, Some(next)) => {
                self.at_mut(node.parent).children.insert(node.local, next);
            }
            (None, None) => {
                self.at_mut(node.parent).children.remove(&node.local);
            }
        }
    }

    fn holder_mut(&mut self, node: NodeId, slot: u32) -> &mut Holder {
        let holders = &mut self.at_mut(node).holders;
        let at = holders.binary_search_by_key(&slot, |holder| holder.slot).expect("the rank is a holder");
        &mut holders[at]
    }

    fn at(&self, node: NodeId) -> &Node {
        &self.nodes[node.0 as usize]
    }

    fn at_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.0 as usize]
    }
}

/// The placement of one rank's blocks in the tree.
pub(super) struct RankNodes<'t> {
    pub(super) nodes: &'t mut Nodes,
    pub(super) slot: u32,
}

impl Placement for RankNodes<'_> {
    type Slot = NodeId;

    fn root(&self) -> NodeId {
        NodeId::ROOT
    }

    fn join(&mut self, &above: &NodeId, local: LocalHash, sequence: SequenceHash, tiers: Tiers) -> NodeId {
        self.nodes.join_child(above, local, Holder { slot: self.slot, tiers, sequence })
    }

    fn hold(&mut self, &node: &NodeId, tier: Tier) {
        self.nodes.holder_mut(node, self.slot).tiers.insert(tier);
    }

    fn release(&mut self, &node: &NodeId, tier: Tier) {
        self.nodes.holder_mut(node, self.slot).tiers.remove(tier);
    }

    fn leave(&mut self, &node: &NodeId) {
        self.nodes.leave(node, self.slot);
    }

    /// Costs the rank's nodes below `node` and all children of these nodes.
    fn below(&self, &node: &NodeId, _: SequenceHash, _: &Lookup<NodeId>) -> Vec<(NodeId, SequenceHash)> {
        let mut below: Vec<(NodeId, SequenceHash)> = self.nodes.children_of(node, self.slot).collect();
        let mut visited = 0;
        while let Some(&(node, _)) = below.get(visited) {
            below.extend(self.nodes.children_of(node, self.slot));
            visited += 1;
        }
        below
    }
}
