//! Sequence hashes of one rank: the blocks that they identify, and their changes by events. Shared by all exact designs
//! that give a block a place according to its prefix.
//!
//! Engines choose sequence hashes freely and publish blocks in any order. [`Lookup`] has the known blocks of a rank,
//! [`RankWriter`] turns the rank's events into places taken and left, and a [`Placement`] is the part of the design:
//! it decides the place of a block after another one.
//!
//! * A block whose parent has no place **waits**, and is placed together with its parent.
//! * A block removed while its descendants are held **keeps** its place for them, without counting.
//! * A sequence hash that is stored with another parent or local hash **moves**: its descendants wait until it has
//!   its new place, and follow it there.

mod lookup;
mod writer;

pub use self::lookup::Lookup;
pub use self::writer::RankWriter;
use crate::{LocalHash, SequenceHash, Tier};

/// Limits of the blocks that a design keeps for one rank in addition to those that the rank holds.
#[derive(Debug, Clone, Copy)]
pub struct RankBlockLimits {
    /// Blocks of one rank that may wait for a parent; further ones are refused and counted.
    pub waiting_blocks_max: usize,
    /// Removed blocks of one rank that may keep their place for their descendants. Beyond the limit the descendants
    /// wait until the removed block is stored again, which changes no answer.
    pub removed_blocks_max: usize,
}

impl Default for RankBlockLimits {
    fn default() -> Self {
        Self { waiting_blocks_max: 1 << 20, removed_blocks_max: 1 << 20 }
    }
}

/// A set of tiers: bit *t* for tier *t*.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tiers(u8);

impl Tiers {
    /// Adds a tier.
    pub fn insert(&mut self, tier: Tier) {
        self.0 |= 1 << tier as u8;
    }

    /// Removes a tier.
    pub fn remove(&mut self, tier: Tier) {
        self.0 &= !(1 << tier as u8);
    }

    /// Number of the fastest tier in the set; of a tier that does not exist if the set is empty.
    #[must_use]
    pub fn fastest(self) -> usize {
        self.0.trailing_zeros() as usize
    }

    /// The tiers of the set, fastest first.
    pub fn iter(self) -> impl Iterator<Item = Tier> {
        Tier::ALL.into_iter().filter(move |&tier| self.0 & (1 << tier as u8) != 0)
    }
}

impl FromIterator<Tier> for Tiers {
    fn from_iter<I: IntoIterator<Item = Tier>>(tiers: I) -> Self {
        let mut set = Self::default();
        tiers.into_iter().for_each(|tier| set.insert(tier));
        set
    }
}

/// A design's slots for blocks, as the writer of one rank sees them.
///
/// A rank has at most one sequence hash in a slot. Slots of one rank form a tree: a block's slot is
/// under its parent's, and is left only after all slots under it.
pub trait Placement {
    /// A slot; cheap to clone.
    type Slot: Clone;

    /// The slot that the first block of a sequence follows.
    fn root(&self) -> Self::Slot;

    /// Gives the rank a slot for a block after `above` and holds it there in `tiers`. If the rank already has a
    /// sequence hash in that slot, the new one gets another slot, a **twin**, so that the descendants of the two
    /// stay separate.
    fn join(&mut self, above: &Self::Slot, local: LocalHash, sequence: SequenceHash, tiers: Tiers) -> Self::Slot;

    /// Records that the block is now held in `tier`.
    fn hold(&mut self, slot: &Self::Slot, tier: Tier);

    /// Records that the block is no longer held in `tier`.
    fn release(&mut self, slot: &Self::Slot, tier: Tier);

    /// Records that the rank has no sequence hash for the slot any more; the slot may still be held in some tiers.
    fn leave(&mut self, slot: &Self::Slot);

    /// Slots and sequence hashes of all blocks that the rank has placed below a block, parents before children. Visits every
    /// block that the rank has named, for designs whose slots do not lead to those below them.
    fn below(
        &self,
        _slot: &Self::Slot,
        sequence: SequenceHash,
        names: &Lookup<Self::Slot>,
    ) -> Vec<(Self::Slot, SequenceHash)> {
        names.placed_below(sequence)
    }
}
