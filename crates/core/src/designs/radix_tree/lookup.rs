//! What one rank has named: from its sequence hashes to nodes.

use rustc_hash::{FxHashMap, FxHashSet};

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

impl Entry {
    pub(super) fn is_held(&self) -> bool {
        !self.copies.is_zero()
    }
}

/// All that one rank has named.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    entries: FxHashMap<SequenceHash, Entry>,
    /// Waiting blocks by the parent that they wait for.
    waiting: FxHashMap<SequenceHash, FxHashSet<SequenceHash>>,
    size: RankSize,
    /// Entries without copies.
    removed_count: usize,
}

impl Lookup {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn size(&self) -> RankSize {
        self.size
    }

    pub(super) fn removed_count(&self) -> usize {
        self.removed_count
    }

    pub(super) fn get(&self, sequence: SequenceHash) -> Option<Entry> {
        self.entries.get(&sequence).copied()
    }

    pub(super) fn node_of(&self, sequence: SequenceHash) -> Option<NodeId> {
        match self.entries.get(&sequence)?.place {
            Place::At { node, .. } => Some(node),
            Place::Waiting => None,
        }
    }

    pub(super) fn held(&self) -> Vec<HeldBlock> {
        let held = self.entries.iter().filter(|(_, entry)| entry.is_held());
        held.map(|(&sequence, entry)| HeldBlock {
            sequence,
            parent: entry.parent,
            local: entry.local,
            copies: entry.copies,
        })
        .collect()
    }

    /// Adds copies to a known block and returns how many there were in that tier before.
    pub(super) fn add_copies(&mut self, sequence: SequenceHash, tier: Tier, copies: u32) -> u32 {
        let entry = self.entries.get_mut(&sequence).expect("the caller found the entry");
        let (was_held, before) = (entry.is_held(), entry.copies[tier]);
        entry.copies[tier] = before.saturating_add(copies);
        if before == 0 {
            self.size.by_tier[tier] += 1;
        }
        if !was_held {
            self.size.blocks += 1;
            self.removed_count -= 1;
        }
        before
    }

    /// Takes copies away from a held block; the entry stays, also without any.
    pub(super) fn set_copies(&mut self, sequence: SequenceHash, tier: Tier, copies: u32) {
        let entry = self.entries.get_mut(&sequence).expect("the caller found the entry");
        entry.copies[tier] = copies;
        if copies > 0 {
            return;
        }
        self.size.by_tier[tier] -= 1;
        if !entry.is_held() {
            self.size.blocks -= 1;
            self.removed_count += 1;
        }
    }

    /// Takes in a new block, held in `tier`, as waiting; [`Lookup::settle`] may follow at once.
    pub(super) fn insert_waiting(
        &mut self,
        sequence: SequenceHash,
        parent: Option<SequenceHash>,
        local: LocalHash,
        (tier, copies): (Tier, u32),
    ) {
        let mut entry = Entry { parent, local, copies: PerTier::default(), place: Place::Waiting };
        entry.copies[tier] = copies;
        self.entries.insert(sequence, entry);
        self.size.by_tier[tier] += 1;
        self.size.blocks += 1;
        self.start_waiting(sequence, parent);
    }

    fn start_waiting(&mut self, sequence: SequenceHash, parent: Option<SequenceHash>) {
        if let Some(parent) = parent {
            self.waiting.entry(parent).or_default().insert(sequence);
        }
        self.size.waiting += 1;
    }

    fn stop_waiting(&mut self, sequence: SequenceHash, parent: Option<SequenceHash>) {
        self.size.waiting -= 1;
        if let Some(parent) = parent
            && let Some(followers) = self.waiting.get_mut(&parent)
        {
            followers.remove(&sequence);
            if followers.is_empty() {
                self.waiting.remove(&parent);
            }
        }
    }

    /// A waiting block has got its node; returns the blocks that waited for it.
    pub(super) fn settle(&mut self, sequence: SequenceHash, node: NodeId) -> Vec<SequenceHash> {
        let entry = self.entries.get_mut(&sequence).expect("a waiting block has an entry");
        entry.place = Place::At { node, followers: 0 };
        let parent = entry.parent;
        self.stop_waiting(sequence, parent);
        self.count_follower(parent, 1);
        self.waiting.get(&sequence).into_iter().flatten().copied().collect()
    }

    /// A placed block has lost its node, because what it followed has lost its own: it waits again,
    /// or is forgotten if it was only kept for its followers.
    pub(super) fn unsettle(&mut self, sequence: SequenceHash) {
        let entry = self.entries.get_mut(&sequence).expect("a placed block has an entry");
        let parent = entry.parent;
        if entry.is_held() {
            entry.place = Place::Waiting;
            self.start_waiting(sequence, parent);
        } else {
            self.entries.remove(&sequence);
            self.removed_count -= 1;
        }
        self.count_follower(parent, -1);
    }

    fn count_follower(&mut self, parent: Option<SequenceHash>, change: i32) {
        if let Some(parent) = parent
            && let Some(Entry { place: Place::At { followers, .. }, .. }) = self.entries.get_mut(&parent)
        {
            *followers = followers.checked_add_signed(change).expect("as many leave as have come");
        }
    }

    /// Forgets a block without followers, whatever copies it has; and then, upward, removed blocks
    /// that only it needed. Returns the nodes that the rank has no name for any more.
    pub(super) fn forget(&mut self, sequence: SequenceHash) -> Vec<NodeId> {
        let mut left = Vec::new();
        let mut next = Some(sequence);
        while let Some(sequence) = next
            && let Some(entry) = self.entries.get(&sequence).copied()
        {
            let is_asked_for = left.is_empty();
            match entry.place {
                Place::At { followers, .. } if followers > 0 => break,
                Place::At { .. } if entry.is_held() && !is_asked_for => break,
                Place::At { node, .. } => left.push(node),
                Place::Waiting if is_asked_for => self.stop_waiting(sequence, entry.parent),
                Place::Waiting => break,
            }
            self.entries.remove(&sequence);
            self.uncount(&entry);
            if matches!(entry.place, Place::Waiting) {
                break;
            }
            self.count_follower(entry.parent, -1);
            next = entry.parent;
        }
        left
    }

    fn uncount(&mut self, entry: &Entry) {
        if entry.is_held() {
            self.size.blocks -= 1;
        } else {
            self.removed_count -= 1;
        }
        for (tier, &copies) in entry.copies.iter() {
            self.size.by_tier[tier] -= usize::from(copies > 0);
        }
    }

    /// Empties the lookup.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        std::mem::take(self).entries.into_values()
    }
}
