//! A node of the concurrent radix tree, with its lock.
//!
//! A thread locks a parent before its child and never a child before its parent. A node is linked while it has holders or
//! children. It is unlinked under its parent's lock and its own, so no rank joins a node during its unlinking.

use std::sync::{Arc, Weak};

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::rank_blocks::{Placement, Tiers};
use flash_indexer_core::{LocalHash, SequenceHash, Tier};
use parking_lot::RwLock;

use crate::holders::Holders;

/// A node of the tree: one prefix, or one of its twins.
#[derive(Debug)]
pub(super) struct Node {
    parent: Weak<Node>,
    local: LocalHash,
    state: RwLock<NodeState>,
}

/// The state that a node's lock protects.
#[derive(Debug, Default)]
pub(super) struct NodeState {
    pub(super) holders: Holders,
    pub(super) children: Children,
}

impl NodeState {
    fn is_needed(&self) -> bool {
        !self.holders.is_empty() || !self.children.is_empty()
    }
}

/// A node's children by local hash.
#[derive(Debug, Default)]
pub(super) struct Children {
    first: KeyedMap<LocalHash, Arc<Node>>,
    /// Other children with a local hash, by their address. They exist only where one rank has several names for one prefix.
    twins: Option<Box<KeyedMap<LocalHash, Twins>>>,
}

type Twins = KeyedMap<usize, Arc<Node>>;

impl Children {
    /// The first child with this local hash.
    pub(super) fn first(&self, local: LocalHash) -> Option<&Arc<Node>> {
        self.first.get(&local)
    }

    /// The other children with this local hash.
    pub(super) fn twins(&self, local: LocalHash) -> impl Iterator<Item = &Arc<Node>> {
        self.twins.iter().filter_map(move |twins| twins.get(&local)).flat_map(Twins::values)
    }

    fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Makes a node the first child with its local hash. The previous first child becomes a twin.
    fn insert(&mut self, node: Arc<Node>) {
        let local = node.local;
        if let Some(before) = self.first.insert(local, node) {
            let twins = self.twins.get_or_insert_default().entry(local).or_default();
            twins.insert(address(&before), before);
        }
    }

    /// Removes a node if it is a child.
    fn remove(&mut self, node: &Arc<Node>) {
        let local = node.local;
        let is_first = self.first(local).is_some_and(|first| Arc::ptr_eq(first, node));
        match (is_first, self.take_twin(local, (!is_first).then(|| address(node)))) {
            (true, Some(twin)) => drop(self.first.insert(local, twin)),
            (true, None) => drop(self.first.remove(&local)),
            (false, _) => {}
        }
    }

    /// Removes and returns the twin at `address`, or any twin if no address is given.
    fn take_twin(&mut self, local: LocalHash, address: Option<usize>) -> Option<Arc<Node>> {
        let by_local = self.twins.as_mut()?;
        let twins = by_local.get_mut(&local)?;
        let address = address.or_else(|| twins.keys().next().copied())?;
        let twin = twins.remove(&address);
        if twins.is_empty() {
            by_local.remove(&local);
        }
        if by_local.is_empty() {
            self.twins = None;
        }
        twin
    }

    fn into_all(self) -> impl Iterator<Item = Arc<Node>> {
        let twins = self.twins.into_iter().flat_map(|twins| twins.into_values()).flat_map(Twins::into_values);
        self.first.into_values().chain(twins)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Node>> {
        let twins = self.twins.iter().flat_map(|twins| twins.values()).flat_map(Twins::values);
        self.first.values().chain(twins)
    }
}

fn address(node: &Arc<Node>) -> usize {
    Arc::as_ptr(node).addr()
}

impl Default for Node {
    /// A root: a node without a parent.
    fn default() -> Self {
        Self { parent: Weak::new(), local: LocalHash(0), state: RwLock::default() }
    }
}

impl Node {
    fn new(parent: &Arc<Self>, local: LocalHash, state: NodeState) -> Self {
        Self { parent: Arc::downgrade(parent), local, state: RwLock::new(state) }
    }

    /// Runs `read` under the node's read lock. `read` must not lock another node.
    pub(super) fn read<R>(&self, read: impl FnOnce(&NodeState) -> R) -> R {
        read(&self.state.read())
    }

    pub(super) fn take_children(&self) -> Vec<Arc<Self>> {
        std::mem::take(&mut self.state.write().children).into_all().collect()
    }

    pub(super) fn count_below(&self) -> usize {
        let children_of = |node: &Self| node.read(|state| state.children.all().cloned().collect::<Vec<_>>());
        let mut pending = children_of(self);
        let mut count = 0;
        while let Some(node) = pending.pop() {
            count += 1;
            pending.append(&mut children_of(&node));
        }
        count
    }

    /// Adds a rank as a holder. Returns false if the rank has named the node already.
    fn try_join(&self, slot: u32, tiers: Tiers) -> bool {
        let holders = &mut self.state.write().holders;
        let is_free = !holders.contains(slot);
        if is_free {
            holders.join(slot, tiers);
        }
        is_free
    }

    /// Adds a rank as a holder of the first child with that local hash, or of a new twin if the rank has named the first
    /// child already.
    fn join_child(self: &Arc<Self>, local: LocalHash, slot: u32, tiers: Tiers) -> Arc<Self> {
        let joined =
            |state: &NodeState| state.children.first(local).filter(|child| child.try_join(slot, tiers)).cloned();
        // Most blocks are in the tree already: then a read lock on the parent is enough.
        if let Some(child) = joined(&self.state.read()) {
            return child;
        }
        let mut state = self.state.write();
        joined(&state).unwrap_or_else(|| {
            let mut child = NodeState::default();
            child.holders.join(slot, tiers);
            let child = Arc::new(Self::new(self, local, child));
            state.children.insert(Arc::clone(&child));
            child
        })
    }

    /// Removes a rank and its name from the node. Then unlinks the node and its ancestors while they have neither holders nor
    /// children.
    fn leave(self: &Arc<Self>, slot: u32) {
        let is_needed = {
            let mut state = self.state.write();
            state.holders.leave(slot);
            state.is_needed()
        };
        let mut unneeded = (!is_needed).then(|| Arc::clone(self));
        while let Some(node) = unneeded
            && let Some(parent) = node.parent.upgrade()
        {
            let is_parent_needed = {
                let mut parent_state = parent.state.write();
                // A rank may have joined the node since.
                if node.state.read().is_needed() {
                    return;
                }
                parent_state.children.remove(&node);
                parent_state.is_needed()
            };
            unneeded = (!is_parent_needed).then_some(parent);
        }
    }
}

/// The placement of one rank's blocks in the tree. Nodes do not store the names of their holders.
pub(super) struct RankNodes<'t> {
    pub(super) root: &'t Arc<Node>,
    pub(super) slot: u32,
}

impl Placement for RankNodes<'_> {
    type Slot = Arc<Node>;

    fn root(&self) -> Arc<Node> {
        Arc::clone(self.root)
    }

    fn join(&mut self, above: &Arc<Node>, local: LocalHash, _: SequenceHash, tiers: Tiers) -> Arc<Node> {
        above.join_child(local, self.slot, tiers)
    }

    fn hold(&mut self, node: &Arc<Node>, tier: Tier) {
        node.state.write().holders.hold(self.slot, tier);
    }

    fn release(&mut self, node: &Arc<Node>, tier: Tier) {
        node.state.write().holders.release(self.slot, tier);
    }

    fn leave(&mut self, node: &Arc<Node>) {
        node.leave(self.slot);
    }
}
