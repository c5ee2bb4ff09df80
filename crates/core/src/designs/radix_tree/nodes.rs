//! The tree itself: nodes in one arena, linked by number.

use rustc_hash::FxHashMap;

use crate::{LocalHash, Tier};

/// Number of a node; reused after the node is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeId(u32);

impl NodeId {
    /// The start of every sequence; holds no block.
    pub(super) const ROOT: Self = Self(0);
}

/// A rank that has a name for a node's block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    pub(super) rank: u32,
    /// Bit *t* for each tier *t* in which the rank holds the block; none once it was removed while
    /// blocks after it are held.
    pub(super) tiers: u8,
}

#[derive(Debug)]
struct Node {
    parent: NodeId,
    local: LocalHash,
    children: FxHashMap<LocalHash, NodeId>,
    /// Another node with the same parent and local hash: only where one rank has two names for one
    /// prefix, whose followers must not be mixed up.
    twin: Option<NodeId>,
    /// Ordered by rank.
    holders: Vec<Holder>,
}

impl Node {
    fn new(parent: NodeId, local: LocalHash) -> Self {
        Self { parent, local, children: FxHashMap::default(), twin: None, holders: Vec::new() }
    }
}

/// Arena of nodes. A node lives while it has holders or children.
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

    /// The child with this local hash; further ones follow by [`Nodes::twin`].
    pub(super) fn child(&self, node: NodeId, local: LocalHash) -> Option<NodeId> {
        self.at(node).children.get(&local).copied()
    }

    pub(super) fn twin(&self, node: NodeId) -> Option<NodeId> {
        self.at(node).twin
    }

    pub(super) fn holders(&self, node: NodeId) -> &[Holder] {
        &self.at(node).holders
    }

    /// Makes `rank` a holder, in no tier yet, of a child of `node` that it has no name for so far.
    pub(super) fn join_child(&mut self, node: NodeId, local: LocalHash, rank: u32) -> NodeId {
        let mut at = self.child(node, local);
        while let Some(child) = at {
            let holders = &mut self.at_mut(child).holders;
            if let Err(place) = holders.binary_search_by_key(&rank, |holder| holder.rank) {
                holders.insert(place, Holder { rank, tiers: 0 });
                return child;
            }
            at = self.twin(child);
        }
        let mut new = Node::new(node, local);
        new.holders.push(Holder { rank, tiers: 0 });
        new.twin = self.child(node, local);
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
        self.at_mut(node).children.insert(local, id);
        id
    }

    /// The holder now holds the block in `tier`.
    pub(super) fn hold(&mut self, node: NodeId, rank: u32, tier: Tier) {
        self.holder_mut(node, rank).tiers |= 1 << tier as u8;
    }

    /// The holder no longer holds the block in `tier`.
    pub(super) fn release(&mut self, node: NodeId, rank: u32, tier: Tier) {
        self.holder_mut(node, rank).tiers &= !(1 << tier as u8);
    }

    /// The rank has no name for the node any more. Drops the node, and then its ancestors, as far
    /// as nobody needs them.
    pub(super) fn leave(&mut self, node: NodeId, rank: u32) {
        let holders = &mut self.at_mut(node).holders;
        let at = holders.binary_search_by_key(&rank, |holder| holder.rank).expect("the rank is a holder");
        holders.remove(at);
        let mut id = node;
        while id != NodeId::ROOT {
            let node = self.at_mut(id);
            if !node.holders.is_empty() || !node.children.is_empty() {
                return;
            }
            let (parent, twin, local) = (node.parent, node.twin, node.local);
            *node = Node::new(NodeId::ROOT, LocalHash(0));
            self.unlink(parent, local, id, twin);
            self.free.push(id);
            id = parent;
        }
    }

    /// Takes a node, whose next twin is `twin`, out of its parent's children.
    fn unlink(&mut self, parent: NodeId, local: LocalHash, node: NodeId, twin: Option<NodeId>) {
        let first = self.child(parent, local).expect("a child is linked from its parent");
        if first == node {
            let children = &mut self.at_mut(parent).children;
            match twin {
                Some(twin) => children.insert(local, twin),
                None => children.remove(&local),
            };
            return;
        }
        let mut before = first;
        while let Some(next) = self.twin(before).filter(|&next| next != node) {
            before = next;
        }
        self.at_mut(before).twin = twin;
    }

    fn holder_mut(&mut self, node: NodeId, rank: u32) -> &mut Holder {
        let holders = &mut self.at_mut(node).holders;
        let at = holders.binary_search_by_key(&rank, |holder| holder.rank).expect("the rank is a holder");
        &mut holders[at]
    }

    fn at(&self, node: NodeId) -> &Node {
        &self.nodes[node.0 as usize]
    }

    fn at_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.0 as usize]
    }
}
