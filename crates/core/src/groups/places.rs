//! Prefix hashes of a rank's sequence hashes: a placement that maps each block of the primary group to its prefix.

use super::rank::{HeldPrefixMap, SecondaryGroups};
use crate::hashing::next_sequence_hash;
use crate::rank_blocks::{Lookup, Placement, Tiers};
use crate::{LocalHash, SequenceHash, Tier};

/// A sequence hash and the prefix that it identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Prefix hash, which a query can compute.
    pub(super) prefix: SequenceHash,
    pub(super) sequence: SequenceHash,
}

/// Placement of a rank's blocks: updates the held prefixes as blocks of the primary group are indexed and dropped.
/// The start of a sequence has no place.
pub(super) struct Places<'a> {
    pub(super) secondary: &'a SecondaryGroups,
    pub(super) held: &'a mut HeldPrefixMap,
}

impl Placement for Places<'_> {
    type Slot = Option<Place>;

    fn root(&self) -> Option<Place> {
        None
    }

    fn join(&mut self, above: &Option<Place>, local: LocalHash, sequence: SequenceHash, _: Tiers) -> Option<Place> {
        let prefix = next_sequence_hash(above.map(|above| above.prefix), local);
        let place = Place { prefix, sequence };
        self.held.set(place, self.secondary.holding(sequence));
        Some(place)
    }

    /// The index itself tracks the tiers of the primary group.
    fn hold(&mut self, _: &Option<Place>, _: Tier) {}

    fn release(&mut self, _: &Option<Place>, _: Tier) {}

    fn leave(&mut self, place: &Option<Place>) {
        if let Some(place) = *place {
            self.held.set(place, super::TierMask::default());
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
