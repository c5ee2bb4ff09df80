//! Bounded map from sequence hashes to values, with eviction by generation.

use flash_indexer_core::SequenceHash;
use flash_indexer_core::keyed::KeyedMap;
use serde::{Deserialize, Serialize};

/// Generation of an entry. Dumps have its name in snake case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Age {
    /// Entry of the current generation.
    Young,
    /// Entry of the previous generation: evicted next unless it is read.
    Old,
}

/// Map from recently used sequence hashes to values. A sequence hash identifies one block content, so an entry never
/// becomes wrong. When the current generation is full, the previous one is evicted; reading an entry moves it to the
/// current one.
#[derive(Debug)]
pub(super) struct RecentMap<T> {
    young: KeyedMap<SequenceHash, T>,
    old: KeyedMap<SequenceHash, T>,
    generation_max: usize,
    /// Whether an entry was evicted since the map was empty.
    has_evicted: bool,
}

impl<T: Copy> RecentMap<T> {
    /// An empty map of at most `generation_max` entries in each of two generations.
    pub(super) fn new(generation_max: usize) -> Self {
        Self { young: KeyedMap::default(), old: KeyedMap::default(), generation_max, has_evicted: false }
    }

    pub(super) fn get(&mut self, hash: SequenceHash) -> Option<T> {
        if let Some(&known) = self.young.get(&hash) {
            return Some(known);
        }
        let known = self.old.remove(&hash)?;
        self.insert(hash, known);
        Some(known)
    }

    /// All entries, the oldest generation first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SequenceHash, T, Age)> {
        let of_age = |age| move |(&hash, &known): (&SequenceHash, &T)| (hash, known, age);
        let old = self.old.iter().filter(|(hash, _)| !self.young.contains_key(hash));
        old.map(of_age(Age::Old)).chain(self.young.iter().map(of_age(Age::Young)))
    }

    /// Imports an entry of another map with its generation. Two full generations fit, in any order.
    pub(super) fn import(&mut self, hash: SequenceHash, known: T, age: Age) {
        let (wanted, other) = match age {
            Age::Young => (&mut self.young, &mut self.old),
            Age::Old => (&mut self.old, &mut self.young),
        };
        let generation = if wanted.len() < self.generation_max { wanted } else { other };
        if generation.len() < self.generation_max {
            generation.insert(hash, known);
        }
    }

    pub(super) fn insert(&mut self, hash: SequenceHash, known: T) {
        if self.young.len() >= self.generation_max {
            self.has_evicted |= !self.old.is_empty();
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, known);
    }

    pub(super) fn remove(&mut self, hash: SequenceHash) {
        self.young.remove(&hash);
        self.old.remove(&hash);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    /// Whether an entry may have been evicted since the map was created or cleared.
    pub(super) fn has_evicted(&self) -> bool {
        self.has_evicted
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.generation_max);
    }
}
