//! How one rank's events change the tree.

use super::RadixTreeLimits;
use super::lookup::{Lookup, Place};
use super::nodes::{NodeId, Nodes};
use crate::{Applied, Block, BlockEvent, RemovedCopies, SequenceHash, Tier};

/// The tree as one rank's writer sees it.
pub(super) struct RankWriter<'t> {
    pub(super) nodes: &'t mut Nodes,
    pub(super) lookup: &'t mut Lookup,
    pub(super) slot: u32,
    pub(super) limits: RadixTreeLimits,
}

impl RankWriter<'_> {
    pub(super) fn apply(&mut self, event: &BlockEvent) -> Applied {
        let mut applied = Applied::default();
        match event {
            BlockEvent::Stored { copies: 0, .. } => {}
            BlockEvent::Stored { tier, parent, blocks, copies } => {
                let mut parent = *parent;
                for &block in blocks {
                    applied += self.store(parent, block, (*tier, *copies));
                    parent = Some(block.sequence);
                }
            }
            BlockEvent::Copied { tier, blocks } => {
                for &sequence in blocks {
                    applied += match self.lookup.get(sequence) {
                        Some(entry) if entry.is_held() => self.add_copies(sequence, (*tier, 1)),
                        _ => Applied { unknown: 1, ..Applied::default() },
                    };
                }
            }
            BlockEvent::Removed { tier, blocks, copies } => {
                for &sequence in blocks {
                    applied += self.remove(sequence, *tier, *copies);
                }
            }
            BlockEvent::Cleared => applied.removed = self.clear(),
        }
        applied
    }

    fn store(&mut self, parent: Option<SequenceHash>, block: Block, copies: (Tier, u32)) -> Applied {
        let Some(entry) = self.lookup.get(block.sequence) else {
            return self.insert(parent, block, copies, self.limits.waiting_blocks_max);
        };
        if (entry.parent, entry.local) == (parent, block.local) {
            return self.add_copies(block.sequence, copies);
        }
        // The name has another meaning now: what it meant is gone, and what followed it follows.
        self.detach_followers(block.sequence);
        self.forget(block.sequence);
        if entry.is_held() {
            let inserted = self.insert(parent, block, copies, usize::MAX);
            return Applied { moved: 1, ..inserted };
        }
        self.insert(parent, block, copies, self.limits.waiting_blocks_max)
    }

    /// More copies of a block whose meaning is known.
    fn add_copies(&mut self, sequence: SequenceHash, (tier, copies): (Tier, u32)) -> Applied {
        if self.lookup.add_copies(sequence, tier, copies) > 0 {
            return Applied { duplicate: 1, ..Applied::default() };
        }
        if let Some(node) = self.lookup.node_of(sequence) {
            self.nodes.hold(node, self.slot, tier);
        }
        Applied { stored: 1, ..Applied::default() }
    }

    /// A block that the rank has no name for so far.
    fn insert(
        &mut self,
        parent: Option<SequenceHash>,
        block: Block,
        copies: (Tier, u32),
        waiting_blocks_max: usize,
    ) -> Applied {
        let above = parent.map_or(Some(NodeId::ROOT), |parent| self.lookup.node_of(parent));
        if above.is_none() && self.lookup.size().waiting >= waiting_blocks_max {
            return Applied { refused: 1, ..Applied::default() };
        }
        self.lookup.insert_waiting(block.sequence, parent, block.local, copies);
        if let Some(above) = above {
            self.place(above, block.sequence);
        }
        Applied { stored: 1, waiting: u64::from(above.is_none()), ..Applied::default() }
    }

    /// Gives a waiting block its node under `above`, and then whatever waited for it.
    fn place(&mut self, above: NodeId, sequence: SequenceHash) {
        let mut pending = vec![(above, sequence)];
        while let Some((above, sequence)) = pending.pop() {
            let entry = self.lookup.get(sequence).expect("waiting blocks have entries");
            let node = self.nodes.join_child(above, entry.local, self.slot, sequence);
            for (tier, &copies) in entry.copies.iter() {
                if copies > 0 {
                    self.nodes.hold(node, self.slot, tier);
                }
            }
            let followers = self.lookup.settle(sequence, node);
            pending.extend(followers.into_iter().map(|follower| (node, follower)));
        }
    }

    /// Makes everything that follows a block wait for it. Costs what the rank has below it and the
    /// children that others have there.
    fn detach_followers(&mut self, sequence: SequenceHash) {
        let Some(node) = self.lookup.node_of(sequence) else { return };
        let mut followers = Vec::new();
        let mut pending = vec![node];
        while let Some(node) = pending.pop() {
            for (child, name) in self.nodes.children_of(node, self.slot) {
                followers.push((child, name));
                pending.push(child);
            }
        }
        // Ends first, so that a node is left only after its children.
        for (node, name) in followers.into_iter().rev() {
            self.lookup.unsettle(name);
            self.nodes.leave(node, self.slot);
        }
    }

    fn forget(&mut self, sequence: SequenceHash) {
        for node in self.lookup.forget(sequence) {
            self.nodes.leave(node, self.slot);
        }
    }

    fn remove(&mut self, sequence: SequenceHash, tier: Tier, copies: RemovedCopies) -> Applied {
        let Some(entry) = self.lookup.get(sequence).filter(|entry| entry.copies[tier] > 0) else {
            return Applied { unknown: 1, ..Applied::default() };
        };
        let left = match copies {
            RemovedCopies::One => entry.copies[tier] - 1,
            RemovedCopies::All => 0,
        };
        self.lookup.set_copies(sequence, tier, left);
        if left == 0 {
            if let Place::At { node, .. } = entry.place {
                self.nodes.release(node, self.slot, tier);
            }
            self.drop_if_unheld(sequence);
        }
        Applied { removed: 1, ..Applied::default() }
    }

    /// A block without copies keeps its place while followers need it, as far as the limit allows.
    fn drop_if_unheld(&mut self, sequence: SequenceHash) {
        let entry = self.lookup.get(sequence).expect("the caller found the entry");
        if entry.is_held() {
            return;
        }
        if self.lookup.removed_count() > self.limits.removed_blocks_max {
            self.detach_followers(sequence);
        }
        self.forget(sequence);
    }

    /// Forgets everything, and says how many blocks were held.
    pub(super) fn clear(&mut self) -> u64 {
        let held = self.lookup.size().blocks as u64;
        for entry in self.lookup.drain() {
            if let Place::At { node, .. } = entry.place {
                self.nodes.leave(node, self.slot);
            }
        }
        held
    }
}
