//! What the names of a rank stand for: the prefix that a block ends, by our own hash.

use super::rank::{HeldPrefixMap, SecondaryGroups};
use crate::designs::{Lookup, Placement, Tiers};
use crate::hashing::next_sequence_hash;
use crate::{LocalHash, SequenceHash, Tier};

/// A name and what it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Our own sequence hash, which a query can compute.
    pub(super) prefix: SequenceHash,
    pub(super) sequence: SequenceHash,
}

/// A rank's places, as they come and go with the blocks of its indexed group. Before the first block of
/// a sequence there is none.
pub(super) struct Places<'a> {
    pub(super) secondary: &'a SecondaryGroups,
    pub(super) held: &'a mut HeldPrefixMap,
}

impl Placement for Places<'_> {
    type Place = Option<Place>;

    fn root(&self) -> Option<Place> {
        None
    }

    fn join(&mut self, above: &Option<Place>, local: LocalHash, sequence: SequenceHash, _: Tiers) -> Option<Place> {
        let prefix = next_sequence_hash(above.map(|above| above.prefix), local);
        let place = Place { prefix, sequence };
        self.held.set(place, self.secondary.holding(sequence));
        Some(place)
    }

    /// Where the indexed group holds a block is the index's business.
    fn hold(&mut self, _: &Option<Place>, _: Tier) {}

    fn release(&mut self, _: &Option<Place>, _: Tier) {}

    fn leave(&mut self, place: &Option<Place>) {
        if let Some(place) = *place {
            self.held.set(place, super::HeldIn::default());
        }
    }

    fn below(
        &self,
        _: &Option<Place>,
        sequence: SequenceHash,
        lookup: &Lookup<Option<Place>>,
    ) -> Vec<(Option<Place>, SequenceHash)> {
        lookup.placed_below(sequence)
    }
}
