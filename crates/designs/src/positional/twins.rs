//! Ranks that have several names for one prefix: what follows each name is followed.

use flash_indexer_core::hashing::next_sequence_hash;
use flash_indexer_core::{PerTier, SequenceHash, Tier};

use super::entry::Entry;
use super::search::Search;

/// One of the rank's names for the query's prefix.
struct Name {
    prefix: SequenceHash,
    /// Fastest tier up to which the rank, using it and the faster ones, holds everything along the
    /// names that led here.
    fastest: usize,
}

/// How many leading blocks of the query one rank holds along any of its names.
pub(super) fn depths_of(search: &mut Search<'_>, slot: u32) -> PerTier<u32> {
    let mut depths = PerTier::default();
    let mut names: Vec<Name> = Vec::new();
    for (position, &local) in search.query().iter().enumerate() {
        let above = match position {
            0 => vec![(None, 0)],
            _ => names.iter().map(|name| (Some(name.prefix), name.fastest)).collect(),
        };
        let next = |entry: &Entry| {
            let mut next = Vec::new();
            for (above, fastest) in above {
                for (prefix, holders) in entry.with_twins(next_sequence_hash(above, local)) {
                    next.push(Name { prefix, fastest: holders.tiers_of(slot).fastest().max(fastest) });
                }
            }
            next.retain(|name| name.fastest < Tier::ALL.len());
            next
        };
        names = search.read(position, next).unwrap_or_default();
        let Some(fastest) = names.iter().map(|name| name.fastest).min() else { break };
        depths.0[fastest..].fill(position as u32 + 1);
    }
    depths
}
