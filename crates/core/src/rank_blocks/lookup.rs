//! The blocks of one rank by sequence hash, each with its place.

use crate::keyed::{KeyedMap, KeyedSet};

use super::Tiers;
use crate::{HeldBlock, LocalHash, PerTier, RankSize, SequenceHash, Tier};

/// State of a known block.
#[derive(Debug, Clone)]
pub(super) enum BlockState<P> {
    /// In a slot, with this many placed children of the same rank.
    Placed { place: P, followers: u32 },
    /// Waiting for its parent to be placed.
    Waiting,
}

/// One known block. A block without copies was removed and keeps its slot for its children.
#[derive(Debug, Clone)]
pub(super) struct Entry<P> {
    pub(super) parent: Option<SequenceHash>,
    pub(super) local: LocalHash,
    pub(super) copies: PerTier<u32>,
    pub(super) position: BlockState<P>,
}

impl<P> Entry<P> {
    pub(super) fn is_held(&self) -> bool {
        !self.copies.is_zero()
    }

    pub(super) fn tiers(&self) -> Tiers {
        self.copies.iter().filter(|&(_, &copies)| copies > 0).map(|(tier, _)| tier).collect()
    }

    pub(super) fn place(&self) -> Option<&P> {
        match &self.position {
            BlockState::Placed { place, .. } => Some(place),
            BlockState::Waiting => None,
        }
    }

    pub(super) fn has_followers(&self) -> bool {
        matches!(self.position, BlockState::Placed { followers, .. } if followers > 0)
    }
}

/// All known blocks of one rank, with places of type `P`.
#[derive(Debug)]
pub struct Lookup<P> {
    entries: KeyedMap<SequenceHash, Entry<P>>,
    /// Waiting blocks by the parent that they wait for.
    waiting: KeyedMap<SequenceHash, KeyedSet<SequenceHash>>,
    size: RankSize,
    /// Entries without copies.
    removed_count: usize,
}

impl<P> Default for Lookup<P> {
    fn default() -> Self {
        Self { entries: KeyedMap::default(), waiting: KeyedMap::default(), size: RankSize::default(), removed_count: 0 }
    }
}

impl<P: Clone> Lookup<P> {
    /// Whether the rank has named no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Numbers of blocks that the rank holds.
    #[must_use]
    pub fn size(&self) -> RankSize {
        self.size
    }

    /// Removed blocks that keep their slot. Zero means that all blocks before a placed block are held.
    #[must_use]
    pub fn removed_count(&self) -> usize {
        self.removed_count
    }

    /// Every block that the rank holds, in no particular order.
    #[must_use]
    pub fn held(&self) -> Vec<HeldBlock> {
        let held = self.entries.iter().filter(|(_, entry)| entry.is_held());
        held.map(|(&sequence, entry)| HeldBlock {
            sequence,
            parent: entry.parent,
            local: entry.local,
            copies: entry.copies,
        })
        .collect()
    }

    /// Blocks that are placed below a block, parents before children. One pass over all blocks of the rank.
    pub(super) fn placed_below(&self, sequence: SequenceHash) -> Vec<(P, SequenceHash)> {
        let mut followers: KeyedMap<SequenceHash, Vec<(&P, SequenceHash)>> = KeyedMap::default();
        for (&name, entry) in &self.entries {
            if let (Some(parent), Some(place)) = (entry.parent, entry.place()) {
                followers.entry(parent).or_default().push((place, name));
            }
        }
        let mut below: Vec<(P, SequenceHash)> = Vec::new();
        let mut next = Some(sequence);
        let mut visited = 0;
        while let Some(above) = next {
            let placed = followers.get(&above).into_iter().flatten();
            below.extend(placed.map(|&(place, name)| (place.clone(), name)));
            next = below.get(visited).map(|&(_, name)| name);
            visited += 1;
        }
        below
    }

    pub(super) fn get(&self, sequence: SequenceHash) -> Option<&Entry<P>> {
        self.entries.get(&sequence)
    }

    /// The slot of a block; none for a waiting block or an unknown sequence hash.
    #[must_use]
    pub fn place_of(&self, sequence: SequenceHash) -> Option<&P> {
        self.entries.get(&sequence)?.place()
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

    /// Sets the copies of a held block; the entry stays, even without any.
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

    /// Adds a new block, held in `tier`, as waiting; [`Lookup::place_waiting`] may follow at once.
    pub(super) fn insert_waiting(
        &mut self,
        sequence: SequenceHash,
        parent: Option<SequenceHash>,
        local: LocalHash,
        (tier, copies): (Tier, u32),
    ) {
        let mut entry = Entry { parent, local, copies: PerTier::default(), position: BlockState::Waiting };
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

    /// Places a waiting block and returns the blocks that waited for it.
    pub(super) fn place_waiting(&mut self, sequence: SequenceHash, place: P) -> Vec<SequenceHash> {
        let entry = self.entries.get_mut(&sequence).expect("a waiting block has an entry");
        entry.position = BlockState::Placed { place, followers: 0 };
        let parent = entry.parent;
        self.stop_waiting(sequence, parent);
        self.count_follower(parent, 1);
        self.waiting.get(&sequence).into_iter().flatten().copied().collect()
    }

    /// Takes the slot from a block whose parent has lost its own. The block waits again, or is dropped if it was
    /// only kept for its children.
    pub(super) fn unplace(&mut self, sequence: SequenceHash) {
        let entry = self.entries.get_mut(&sequence).expect("a placed block has an entry");
        let parent = entry.parent;
        if entry.is_held() {
            entry.position = BlockState::Waiting;
            self.start_waiting(sequence, parent);
        } else {
            self.entries.remove(&sequence);
            self.removed_count -= 1;
        }
        self.count_follower(parent, -1);
    }

    fn count_follower(&mut self, parent: Option<SequenceHash>, change: i32) {
        if let Some(parent) = parent
            && let Some(Entry { position: BlockState::Placed { followers, .. }, .. }) = self.entries.get_mut(&parent)
        {
            *followers = followers.checked_add_signed(change).expect("as many leave as have come");
        }
    }

    /// Drops a block without children, with all its copies, and then, upward, removed ancestors that only it
    /// needed. Returns the slots for which the rank has no sequence hash any more.
    pub(super) fn forget(&mut self, sequence: SequenceHash) -> Vec<P> {
        let mut left = Vec::new();
        let mut next = Some(sequence);
        while let Some(sequence) = next
            && let Some(entry) = self.entries.get(&sequence)
        {
            let is_asked_for = left.is_empty();
            let is_needed = entry.has_followers() || (!is_asked_for && entry.is_held());
            if is_needed {
                break;
            }
            let entry = self.entries.remove(&sequence).expect("it was found just now");
            self.uncount(&entry);
            let BlockState::Placed { place, .. } = entry.position else {
                self.stop_waiting(sequence, entry.parent);
                break;
            };
            left.push(place);
            self.count_follower(entry.parent, -1);
            next = entry.parent;
        }
        left
    }

    fn uncount(&mut self, entry: &Entry<P>) {
        if entry.is_held() {
            self.size.blocks -= 1;
        } else {
            self.removed_count -= 1;
        }
        for tier in entry.tiers().iter() {
            self.size.by_tier[tier] -= 1;
        }
    }

    /// Empties the lookup and returns the places that it had.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = P> {
        let entries = std::mem::take(self).entries.into_values();
        entries.filter_map(|entry| match entry.position {
            BlockState::Placed { place, .. } => Some(place),
            BlockState::Waiting => None,
        })
    }
}
