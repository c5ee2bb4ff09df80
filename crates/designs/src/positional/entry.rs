//! The blocks at one position with one local hash.

use flash_indexer_core::SequenceHash;
use flash_indexer_core::keyed::{KeyedMap, KeyedSet};

use crate::holders::Holders;

/// Holders by prefix hash. Nearly always there is one prefix, and that takes no allocation.
#[derive(Debug)]
pub(super) enum Entry {
    Single { prefix: SequenceHash, holders: Holders },
    Multi(Box<Multi>),
}

/// Several prefixes that end in the same content.
#[derive(Debug, Default)]
pub(super) struct Multi {
    by_prefix: KeyedMap<SequenceHash, Filed>,
    /// Twins of a prefix; the prefix itself may be held by nobody.
    twins: KeyedMap<SequenceHash, KeyedSet<SequenceHash>>,
}

#[derive(Debug, Default)]
struct Filed {
    holders: Holders,
    /// The prefix that this is another name for.
    twin_of: Option<SequenceHash>,
}

impl Entry {
    pub(super) fn new(prefix: SequenceHash) -> Self {
        Self::Single { prefix, holders: Holders::default() }
    }

    pub(super) fn holders(&self, prefix: SequenceHash) -> Option<&Holders> {
        match self {
            Self::Single { prefix: only, holders } => (*only == prefix).then_some(holders),
            Self::Multi(multi) => multi.by_prefix.get(&prefix).map(|filed| &filed.holders),
        }
    }

    pub(super) fn holders_mut(&mut self, prefix: SequenceHash) -> Option<&mut Holders> {
        match self {
            Self::Single { prefix: only, holders } => (*only == prefix).then_some(holders),
            Self::Multi(multi) => multi.by_prefix.get_mut(&prefix).map(|filed| &mut filed.holders),
        }
    }

    pub(super) fn holders_or_insert(&mut self, prefix: SequenceHash) -> &mut Holders {
        if self.holders(prefix).is_some() {
            return self.holders_mut(prefix).expect("it is there");
        }
        &mut self.multi().by_prefix.entry(prefix).or_default().holders
    }

    /// The holders under another name for `prefix`.
    pub(super) fn twin_or_insert(&mut self, prefix: SequenceHash, twin: SequenceHash) -> &mut Holders {
        let multi = self.multi();
        multi.twins.entry(prefix).or_default().insert(twin);
        let filed = multi.by_prefix.entry(twin).or_default();
        filed.twin_of = Some(prefix);
        &mut filed.holders
    }

    /// A prefix and its twins, as far as they are held.
    pub(super) fn with_twins(&self, prefix: SequenceHash) -> impl Iterator<Item = (SequenceHash, &Holders)> {
        let twins = match self {
            Self::Single { .. } => None,
            Self::Multi(multi) => multi.twins.get(&prefix),
        };
        let names = std::iter::once(prefix).chain(twins.into_iter().flatten().copied());
        names.filter_map(|name| Some((name, self.holders(name)?)))
    }

    /// Takes out a prefix that nobody has a name for any more; says whether nothing is left.
    pub(super) fn remove(&mut self, prefix: SequenceHash) -> bool {
        let Self::Multi(multi) = self else { return true };
        if let Some(original) = multi.by_prefix.remove(&prefix).and_then(|filed| filed.twin_of)
            && let Some(twins) = multi.twins.get_mut(&original)
        {
            twins.remove(&prefix);
            if twins.is_empty() {
                multi.twins.remove(&original);
            }
        }
        if multi.by_prefix.len() == 1 && multi.twins.is_empty() {
            let last = multi.by_prefix.drain().next();
            *self = last.map(|(prefix, Filed { holders, .. })| Self::Single { prefix, holders }).expect("there is one");
            return false;
        }
        multi.by_prefix.is_empty()
    }

    fn multi(&mut self) -> &mut Multi {
        if let Self::Single { prefix, holders } = self {
            let mut multi = Multi::default();
            if !holders.is_empty() {
                let filed = Filed { holders: std::mem::take(holders), twin_of: None };
                multi.by_prefix.insert(*prefix, filed);
            }
            *self = Self::Multi(Box::new(multi));
        }
        match self {
            Self::Multi(multi) => multi,
            Self::Single { .. } => unreachable!("it was made a multi just now"),
        }
    }
}
