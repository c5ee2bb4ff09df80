//! The search for ranks with several names for one prefix: it follows every name.

use flash_indexer_core::hashing::next_sequence_hash;
use flash_indexer_core::{PerTier, SequenceHash, Tier};

use super::entry::Entry;
use super::search::Search;

/// One of a rank's names for the query's prefix.
struct PrefixName {
    prefix: SequenceHash,
    /// The fastest tier such that this tier and the faster ones together hold every block along the chain of names.
    fastest: usize,
}

/// The number of leading blocks of the query that a rank holds along any chain of its names, tier by tier.
pub(super) fn depths_with_twins(search: &mut Search<'_>, slot: u32) -> PerTier<u32> {
    let mut depths = PerTier::default();
    let mut names: Vec<PrefixName> = Vec::new();
    for (position, &local) in search.query.iter().enumerate() {
        let parents = match position {
            0 => vec![(None, 0)],
            _ => names.iter().map(|name| (Some(name.prefix), name.fastest)).collect(),
        };
        let next = |entry: &Entry| {
            let mut next = Vec::new();
            for (parent, fastest) in parents {
                for (prefix, holders) in entry.with_twins(next_sequence_hash(parent, local)) {
                    next.push(PrefixName { prefix, fastest: holders.tiers_of(slot).fastest().max(fastest) });
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
