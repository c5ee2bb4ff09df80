//! Applies the events of one rank to its sequence hashes and slots.

use super::lookup::Lookup;
use super::{Placement, RankBlockLimits};
use crate::{AppliedChanges, Block, BlockEvent, RemovedCopies, SequenceHash, Tier};

/// One rank's sequence hashes and slots, to be changed.
pub struct RankWriter<'l, P: Placement> {
    /// The design's slots.
    pub placement: P,
    /// The rank's sequence hashes.
    pub names: &'l mut Lookup<P::Slot>,
    /// Limits of waiting and removed blocks.
    pub limits: RankBlockLimits,
}

impl<P: Placement> RankWriter<'_, P> {
    /// Applies one event of the rank and returns what it changed.
    pub fn apply(&mut self, event: &BlockEvent) -> AppliedChanges {
        let mut applied = AppliedChanges::default();
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
                    applied += match self.names.get(sequence) {
                        Some(entry) if entry.is_held() => self.add_copies(sequence, (*tier, 1)),
                        _ => AppliedChanges { unknown: 1, ..AppliedChanges::default() },
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

    fn store(&mut self, parent: Option<SequenceHash>, block: Block, copies: (Tier, u32)) -> AppliedChanges {
        let Some(entry) = self.names.get(block.sequence) else {
            return self.insert(parent, block, copies, self.limits.waiting_blocks_max);
        };
        if (entry.parent, entry.local) == (parent, block.local) {
            return self.add_copies(block.sequence, copies);
        }
        // The sequence hash is redefined: the old definition is dropped, and the blocks that followed it follow the
        // new one.
        let was_held = entry.is_held();
        self.detach_followers(block.sequence);
        self.forget(block.sequence);
        if was_held {
            let inserted = self.insert(parent, block, copies, usize::MAX);
            return AppliedChanges { moved: 1, ..inserted };
        }
        self.insert(parent, block, copies, self.limits.waiting_blocks_max)
    }

    /// Adds copies to a block whose parent and local hash are known.
    fn add_copies(&mut self, sequence: SequenceHash, (tier, copies): (Tier, u32)) -> AppliedChanges {
        if self.names.add_copies(sequence, tier, copies) > 0 {
            return AppliedChanges { duplicate: 1, ..AppliedChanges::default() };
        }
        if let Some(place) = self.names.place_of(sequence) {
            self.placement.hold(place, tier);
        }
        AppliedChanges { stored: 1, ..AppliedChanges::default() }
    }

    /// Adds a block whose sequence hash is unknown so far.
    fn insert(
        &mut self,
        parent: Option<SequenceHash>,
        block: Block,
        copies: (Tier, u32),
        waiting_blocks_max: usize,
    ) -> AppliedChanges {
        let above = match parent {
            None => Some(self.placement.root()),
            Some(parent) => self.names.place_of(parent).cloned(),
        };
        if above.is_none() && self.names.size().waiting >= waiting_blocks_max {
            return AppliedChanges { refused: 1, ..AppliedChanges::default() };
        }
        self.names.insert_waiting(block.sequence, parent, block.local, copies);
        let waiting = u64::from(above.is_none());
        if let Some(above) = above {
            self.place(above, block.sequence);
        }
        AppliedChanges { stored: 1, waiting, ..AppliedChanges::default() }
    }

    /// Places a waiting block under `above`, and then the blocks that waited for it.
    fn place(&mut self, above: P::Slot, sequence: SequenceHash) {
        let mut pending = vec![(above, sequence)];
        while let Some((above, sequence)) = pending.pop() {
            let entry = self.names.get(sequence).expect("waiting blocks have entries");
            let place = self.placement.join(&above, entry.local, sequence, entry.tiers());
            let followers = self.names.place_waiting(sequence, place.clone());
            pending.extend(followers.into_iter().map(|follower| (place.clone(), follower)));
        }
    }

    /// Makes all descendants of a block wait for it. Costs what [`Placement::below`] costs.
    fn detach_followers(&mut self, sequence: SequenceHash) {
        let Some(entry) = self.names.get(sequence).filter(|entry| entry.has_followers()) else { return };
        let place = entry.place().expect("what is followed has a place");
        let below = self.placement.below(place, sequence, self.names);
        // Ends first, so that a place is left only after those under it.
        for (place, name) in below.into_iter().rev() {
            self.names.unplace(name);
            self.placement.leave(&place);
        }
    }

    fn forget(&mut self, sequence: SequenceHash) {
        for place in self.names.forget(sequence) {
            self.placement.leave(&place);
        }
    }

    fn remove(&mut self, sequence: SequenceHash, tier: Tier, copies: RemovedCopies) -> AppliedChanges {
        let Some(entry) = self.names.get(sequence).filter(|entry| entry.copies[tier] > 0) else {
            return AppliedChanges { unknown: 1, ..AppliedChanges::default() };
        };
        let left = copies.left(entry.copies[tier]);
        self.names.set_copies(sequence, tier, left);
        if left == 0 {
            self.release(sequence, tier);
        }
        AppliedChanges { removed: 1, ..AppliedChanges::default() }
    }

    /// Handles the removal of the last copy in a tier. A block without copies keeps its place while children need it,
    /// within the limit.
    fn release(&mut self, sequence: SequenceHash, tier: Tier) {
        let entry = self.names.get(sequence).expect("the caller found the entry");
        let keeps_place =
            entry.is_held() || (entry.has_followers() && self.names.removed_count() <= self.limits.removed_blocks_max);
        if keeps_place {
            if let Some(place) = entry.place() {
                self.placement.release(place, tier);
            }
        } else {
            self.detach_followers(sequence);
            self.forget(sequence);
        }
    }

    /// Drops everything and returns the number of held blocks.
    fn clear(&mut self) -> u64 {
        let held = self.names.size().blocks as u64;
        for place in self.names.drain() {
            self.placement.leave(&place);
        }
        held
    }
}
