//! What one rank has named: from its sequence hashes to nodes.

use rustc_hash::FxHashMap;

use super::nodes::NodeId;
use crate::{HeldBlock, LocalHash, PerTier, RankSize, SequenceHash, Tier};

/// Where a named block is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// In the tree, with this many entries of the same rank directly after it.
    At { node: NodeId, followers: u32 },
    /// Set aside until its parent is placed.
    Waiting,
}

/// One named block. Without copies it is a removed block that keeps its place for its followers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) parent: Option<SequenceHash>,
    pub(super) local: LocalHash,
    pub(super) copies: PerTier<u32>,
    pub(super) place: Place,
}

/// All that one rank has named.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    entries: FxHashMap<SequenceHash, Entry>,
    /// Waiting blocks by the parent that they wait for.
    waiting: FxHashMap<SequenceHash, Vec<SequenceHash>>,
    size: RankSize,
}

impl Lookup {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn size(&self) -> RankSize {
        self.size
    }

    pub(super) fn get_mut(&mut self, sequence: SequenceHash) -> Option<&mut Entry> {
        self.entries.get_mut(&sequence)
    }

    pub(super) fn node_of(&self, sequence: SequenceHash) -> Option<NodeId> {
        match self.entries.get(&sequence)?.place {
            Place::At { node, .. } => Some(node),
            Place::Waiting => None,
        }
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.size.waiting
    }

    pub(super) fn is_waiting(&self, sequence: SequenceHash) -> bool {
        self.entries.get(&sequence).is_some_and(|entry| matches!(entry.place, Place::Waiting))
    }

    pub(super) fn held(&self) -> Vec<HeldBlock> {
        let held = self.entries.iter().filter(|(_, entry)| !entry.copies.is_zero());
        held.map(|(&sequence, entry)| HeldBlock {
            sequence,
            parent: entry.parent,
            local: entry.local,
            copies: entry.copies,
        })
        .collect()
    }

    pub(super) fn count_held(&mut self, tier: Tier, newly_held: bool) {
        self.size.by_tier[tier] += 1;
        self.size.blocks += usize::from(newly_held);
    }

    pub(super) fn count_dropped(&mut self, tier: Tier, last_copy: bool) {
        self.size.by_tier[tier] -= 1;
        self.size.blocks -= usize::from(last_copy);
    }

    /// Takes in a new block as waiting; [`Lookup::settle`] may follow at once.
    pub(super) fn insert_waiting(&mut self, sequence: SequenceHash, entry: Entry) {
        if let Some(parent) = entry.parent {
            self.waiting.entry(parent).or_default().push(sequence);
        }
        self.entries.insert(sequence, entry);
        self.size.waiting += 1;
    }

    /// A waiting block has got its node.
    pub(super) fn settle(&mut self, sequence: SequenceHash, node: NodeId) {
        let entry = self.entries.get_mut(&sequence).expect("a waiting block has an entry");
        entry.place = Place::At { node, followers: 0 };
        let parent = entry.parent;
        self.size.waiting -= 1;
        let Some(parent) = parent else { return };
        self.stop_waiting(parent, sequence);
        if let Some(Entry { place: Place::At { followers, .. }, .. }) = self.entries.get_mut(&parent) {
            *followers += 1;
        }
    }

    /// The blocks that waited for `parent`; the caller settles them.
    pub(super) fn take_followers(&mut self, parent: SequenceHash) -> Vec<SequenceHash> {
        self.waiting.remove(&parent).unwrap_or_default()
    }

    fn stop_waiting(&mut self, parent: SequenceHash, sequence: SequenceHash) {
        let Some(followers) = self.waiting.get_mut(&parent) else { return };
        followers.retain(|&follower| follower != sequence);
        if followers.is_empty() {
            self.waiting.remove(&parent);
        }
    }

    /// Forgets a block without copies unless followers need its place, and then, upward, removed
    /// blocks that only it needed. Returns the nodes that the rank has no name for any more.
    pub(super) fn forget_unused(&mut self, sequence: SequenceHash) -> Vec<NodeId> {
        let mut left = Vec::new();
        let mut at = Some(sequence);
        while let Some(sequence) = at {
            let Some(entry) = self.entries.get(&sequence).copied() else { break };
            match entry.place {
                Place::At { followers, .. } if followers > 0 || !entry.copies.is_zero() => break,
                Place::At { node, .. } => {
                    left.push(node);
                    self.entries.remove(&sequence);
                    if let Some(parent) = entry.parent
                        && let Some(Entry { place: Place::At { followers, .. }, .. }) = self.entries.get_mut(&parent)
                    {
                        *followers -= 1;
                    }
                    at = entry.parent;
                }
                Place::Waiting => {
                    self.entries.remove(&sequence);
                    self.size.waiting -= 1;
                    if let Some(parent) = entry.parent {
                        self.stop_waiting(parent, sequence);
                    }
                    break;
                }
            }
        }
        left
    }

    /// Empties the lookup.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        std::mem::take(self).entries.into_values()
    }
}
