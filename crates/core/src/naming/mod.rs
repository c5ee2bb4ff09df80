//! What the names of one rank's blocks mean, and how its events change that: the same for every
//! exact design that gives a block a place according to its prefix.
//!
//! Engines name blocks as they like and tell them in any order. [`Lookup`] keeps what a rank has
//! named, [`RankWriter`] turns its events into places taken and left, and a [`Placement`] is the
//! design's part: where a block lies that follows another one.
//!
//! * A block whose parent has no place **waits**, and takes its place when the parent does.
//! * A block removed while blocks after it are held **keeps** its place for them, without counting.
//! * A name that is stored with another parent or content **moves**: what follows it waits until it
//!   has its new place, and follows it there.

mod lookup;
mod writer;

pub use self::lookup::Lookup;
pub use self::writer::RankWriter;
use crate::{LocalHash, SequenceHash, Tier};

/// Bounds of what one rank can make a design keep beyond the blocks that it holds.
#[derive(Debug, Clone, Copy)]
pub struct NamingLimits {
    /// Blocks of one rank that may wait for a parent; further ones are refused and counted.
    pub waiting_blocks_max: usize,
    /// Removed blocks of one rank that may keep their place for blocks after them; beyond it those
    /// wait until the removed block comes back, which changes no answer.
    pub removed_blocks_max: usize,
}

impl Default for NamingLimits {
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

/// A design's places as one rank's writer sees them.
///
/// A rank has at most one name in a place. Places of one rank form a tree: a block's place lies
/// under its parent's, and is left only after all places under it.
pub trait Placement {
    /// A place; cheap to clone.
    type Place: Clone;

    /// What the first block of a sequence follows.
    fn root(&self) -> Self::Place;

    /// Gives the rank a place for a block after `above` and holds it there in `tiers`. If the rank
    /// has a name in that place already, the new one gets another place, a **twin**: what follows
    /// the two names must not be mixed up.
    fn join(&mut self, above: &Self::Place, local: LocalHash, sequence: SequenceHash, tiers: Tiers) -> Self::Place;

    /// The block is now held in `tier`.
    fn hold(&mut self, place: &Self::Place, tier: Tier);

    /// The block is no longer held in `tier`.
    fn release(&mut self, place: &Self::Place, tier: Tier);

    /// The rank has no name for the place any more; it may still be held in some tiers.
    fn leave(&mut self, place: &Self::Place);

    /// The places and names of everything that the rank has placed below a block, parents before
    /// children.
    fn below(
        &self,
        place: &Self::Place,
        sequence: SequenceHash,
        names: &Lookup<Self::Place>,
    ) -> Vec<(Self::Place, SequenceHash)>;
}
