//! What the names of a rank stand for: the prefix that a block ends, by our own hash.

use super::rank::{Further, HeldPlaces};
use crate::hashing::next_sequence_hash;
use crate::naming::{Lookup, Placement, Tiers};
use crate::{LocalHash, SequenceHash, Tier};

/// A name and what it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Our own sequence hash, which a query can compute.
    pub(super) prefix: SequenceHash,
    pub(super) name: SequenceHash,
}

/// A rank's places, as they come and go with the blocks of its indexed group. Before the first block of
/// a sequence there is none.
pub(super) struct Places<'a> {
    pub(super) further: &'a Further,
    pub(super) held: &'a mut HeldPlaces,
}

impl Placement for Places<'_> {
    type Place = Option<Place>;

    fn root(&self) -> Option<Place> {
        None
    }

    fn join(&mut self, above: &Option<Place>, local: LocalHash, name: SequenceHash, _: Tiers) -> Option<Place> {
        let prefix = next_sequence_hash(above.map(|above| above.prefix), local);
        let place = Place { prefix, name };
        self.held.set(place, self.further.holding(name));
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
        name: SequenceHash,
        names: &Lookup<Option<Place>>,
    ) -> Vec<(Option<Place>, SequenceHash)> {
        names.placed_below(name)
    }
}
