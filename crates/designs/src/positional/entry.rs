//! An entry of the table: the holders of the blocks at one position with one local hash.

use flash_indexer_core::SequenceHash;
use flash_indexer_core::keyed::{KeyedMap, KeyedSet};

use crate::holders::Holders;

/// Holders by prefix hash. Most entries have one prefix, which needs no allocation.
#[derive(Debug)]
pub(super) enum Entry {
    Single { prefix: SequenceHash, holders: Holders },
    Multiple(Box<PrefixMap>),
}

/// The holders of several prefixes of the same length with the same last local hash.
#[derive(Debug, Default)]
pub(super) struct PrefixMap {
    by_prefix: KeyedMap<SequenceHash, PrefixHolders>,
    /// Twins of a prefix. The prefix itself can be without holders.
    twins: KeyedMap<SequenceHash, KeyedSet<SequenceHash>>,
}

#[derive(Debug, Default)]
struct PrefixHolders {
    holders: Holders,
    /// The prefix that this is a twin of.
    twin_of: Option<SequenceHash>,
}

impl Entry {
    pub(super) fn new(prefix: SequenceHash) -> Self {
        Self::Single { prefix, holders: Holders::default() }
    }

    pub(super) fn holders(&self, prefix: SequenceHash) -> Option<&Holders> {
        match self {
            Self::Single { prefix: only, holders } => (*only == prefix).then_some(holders),
            Self::Multiple(map) => map.by_prefix.get(&prefix).map(|entry| &entry.holders),
        }
    }

    pub(super) fn holders_mut(&mut self, prefix: SequenceHash) -> Option<&mut Holders> {
        match self {
            Self::Single { prefix: only, holders } => (*only == prefix).then_some(holders),
            Self::Multiple(map) => map.by_prefix.get_mut(&prefix).map(|entry| &mut entry.holders),
        }
    }

    /// The holders of `prefix`, inserted if missing.
    pub(super) fn holders_or_insert(&mut self, prefix: SequenceHash) -> &mut Holders {
        if self.holders(prefix).is_some() {
            return self.holders_mut(prefix).expect("the holders were found above");
        }
        &mut self.map().by_prefix.entry(prefix).or_default().holders
    }

    /// The holders of `twin`, a second name for `prefix`. Inserted if missing.
    pub(super) fn twin_or_insert(&mut self, prefix: SequenceHash, twin: SequenceHash) -> &mut Holders {
        let map = self.map();
        map.twins.entry(prefix).or_default().insert(twin);
        let entry = map.by_prefix.entry(twin).or_default();
        entry.twin_of = Some(prefix);
        &mut entry.holders
    }

    /// A prefix and its twins, if they have holders.
    pub(super) fn with_twins(&self, prefix: SequenceHash) -> impl Iterator<Item = (SequenceHash, &Holders)> {
        let twins = match self {
            Self::Single { .. } => None,
            Self::Multiple(map) => map.twins.get(&prefix),
        };
        let names = std::iter::once(prefix).chain(twins.into_iter().flatten().copied());
        names.filter_map(|name| Some((name, self.holders(name)?)))
    }

    /// Removes a prefix without holders. Returns true if the entry is empty afterwards.
    pub(super) fn remove(&mut self, prefix: SequenceHash) -> bool {
        let Self::Multiple(map) = self else { return true };
        if let Some(original) = map.by_prefix.remove(&prefix).and_then(|entry| entry.twin_of)
            && let Some(twins) = map.twins.get_mut(&original)
        {
            twins.remove(&prefix);
            if twins.is_empty() {
                map.twins.remove(&original);
            }
        }
        if map.by_prefix.len() == 1 && map.twins.is_empty() {
            let last = map.by_prefix.drain().next();
            *self = last
                .map(|(prefix, PrefixHolders { holders, .. })| Self::Single { prefix, holders })
                .expect("the map has one prefix");
            return false;
        }
        map.by_prefix.is_empty()
    }

    /// The map of the entry. Converts an entry with a single prefix.
    fn map(&mut self) -> &mut PrefixMap {
        if let Self::Single { prefix, holders } = self {
            let mut map = PrefixMap::default();
            if !holders.is_empty() {
                let entry = PrefixHolders { holders: std::mem::take(holders), twin_of: None };
                map.by_prefix.insert(*prefix, entry);
            }
            *self = Self::Multiple(Box::new(map));
        }
        match self {
            Self::Multiple(map) => map,
            Self::Single { .. } => unreachable!("the entry was converted above"),
        }
    }
}
