//! The table by position, and how ranks join and leave its entries.

use dashmap::DashMap;
use dashmap::mapref::entry::Entry as Slot;
use flash_indexer_core::hashing::next_sequence_hash;
use flash_indexer_core::keyed::KeyedState;
use flash_indexer_core::naming::{Lookup, Placement, Tiers};
use flash_indexer_core::{LocalHash, SequenceHash, Tier};
use xxhash_rust::xxh3::xxh3_64;

use super::entry::Entry;
use crate::holders::Holders;

/// Entries by position and local hash, in shards with a lock each.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: DashMap<(u32, LocalHash), Entry, KeyedState>,
}

/// Where a block is filed: all that is needed to find it, and what follows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Blocks up to and including this one; none for the start of all sequences.
    depth: u32,
    is_twin: bool,
    local: LocalHash,
    prefix: SequenceHash,
}

impl Place {
    const ROOT: Self = Self { depth: 0, is_twin: false, local: LocalHash(0), prefix: SequenceHash(0) };

    fn key(self) -> (u32, LocalHash) {
        (self.depth - 1, self.local)
    }

    fn next_prefix(self, local: LocalHash) -> SequenceHash {
        next_sequence_hash((self.depth > 0).then_some(self.prefix), local)
    }
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Reads the entry of a position while `look` runs; the table must not be used in it.
    pub(super) fn read<R>(&self, position: usize, local: LocalHash, look: impl FnOnce(&Entry) -> R) -> Option<R> {
        let entry = self.entries.get(&(u32::try_from(position).ok()?, local))?;
        Some(look(&entry))
    }

    fn change(&self, place: Place, change: impl FnOnce(&mut Holders)) {
        let mut entry = self.entries.get_mut(&place.key()).expect("a place has an entry");
        change(entry.holders_mut(place.prefix).expect("a place has holders"));
    }

    fn join(&self, above: Place, local: LocalHash, sequence: SequenceHash, slot: u32, tiers: Tiers) -> Place {
        let prefix = above.next_prefix(local);
        let mut place = Place { depth: above.depth + 1, is_twin: false, local, prefix };
        let mut entry = self.entries.entry(place.key()).or_insert_with(|| Entry::new(prefix));
        if entry.holders(prefix).is_some_and(|holders| holders.has(slot)) {
            place.is_twin = true;
            place.prefix = twin_of(prefix, sequence);
            entry.twin_or_insert(prefix, place.prefix).join(slot, tiers);
        } else {
            entry.holders_or_insert(prefix).join(slot, tiers);
        }
        place
    }

    fn leave(&self, place: Place, slot: u32) {
        let Slot::Occupied(mut entry) = self.entries.entry(place.key()) else { return };
        let holders = entry.get_mut().holders_mut(place.prefix).expect("a place has holders");
        holders.leave(slot);
        if holders.is_empty() && entry.get_mut().remove(place.prefix) {
            entry.remove();
        }
    }
}

/// The hash that stands for a prefix under a rank's second name for it, so that what follows the two
/// names is filed apart.
fn twin_of(prefix: SequenceHash, name: SequenceHash) -> SequenceHash {
    let mut bytes = *b"twin of ........ named ........";
    bytes[8..16].copy_from_slice(&prefix.0.to_le_bytes());
    bytes[23..31].copy_from_slice(&name.0.to_le_bytes());
    SequenceHash(xxh3_64(&bytes))
}

/// The table as one rank's writer sees it.
pub(super) struct RankPlaces<'t> {
    pub(super) table: &'t Table,
    pub(super) slot: u32,
    /// Twins that the rank has.
    pub(super) twins: &'t mut usize,
}

impl Placement for RankPlaces<'_> {
    type Place = Place;

    fn root(&self) -> Place {
        Place::ROOT
    }

    fn join(&mut self, &above: &Place, local: LocalHash, sequence: SequenceHash, tiers: Tiers) -> Place {
        let place = self.table.join(above, local, sequence, self.slot, tiers);
        *self.twins += usize::from(place.is_twin);
        place
    }

    fn hold(&mut self, &place: &Place, tier: Tier) {
        self.table.change(place, |holders| holders.hold(self.slot, tier));
    }

    fn release(&mut self, &place: &Place, tier: Tier) {
        self.table.change(place, |holders| holders.release(self.slot, tier));
    }

    fn leave(&mut self, &place: &Place) {
        self.table.leave(place, self.slot);
        *self.twins -= usize::from(place.is_twin);
    }

    /// Positions do not lead to those after them, so this goes over all that the rank has named.
    fn below(&self, _: &Place, sequence: SequenceHash, names: &Lookup<Place>) -> Vec<(Place, SequenceHash)> {
        names.placed_below(sequence)
    }
}
