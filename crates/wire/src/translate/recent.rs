//! What is remembered of an engine's block names.

use flash_indexer_core::SequenceHash;
use flash_indexer_core::keyed::KeyedMap;

/// In which of two generations something is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Age {
    /// Among what was used last.
    Young,
    /// Before that: forgotten next, unless it is used.
    Old,
}

/// Something about each of the names that were used last. A name means one content, so an entry never
/// becomes wrong, only useless: the oldest are forgotten when there are too many, and what is used stays.
#[derive(Debug)]
pub(super) struct Recent<T> {
    young: KeyedMap<SequenceHash, T>,
    old: KeyedMap<SequenceHash, T>,
    generation_max: usize,
}

impl<T: Copy> Recent<T> {
    /// Remembers so many names in each of two generations.
    pub(super) fn new(generation_max: usize) -> Self {
        Self { young: KeyedMap::default(), old: KeyedMap::default(), generation_max }
    }

    pub(super) fn get(&mut self, name: SequenceHash) -> Option<T> {
        if let Some(&known) = self.young.get(&name) {
            return Some(known);
        }
        let known = self.old.remove(&name)?;
        self.insert(name, known);
        Some(known)
    }

    /// What is known of each name, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SequenceHash, T, Age)> {
        let of_age = |age| move |(&name, &known): (&SequenceHash, &T)| (name, known, age);
        let old = self.old.iter().filter(|(name, _)| !self.young.contains_key(name));
        old.map(of_age(Age::Old)).chain(self.young.iter().map(of_age(Age::Young)))
    }

    /// Knows what another one knew, and for as long. Two generations' worth fit in, in any order.
    pub(super) fn learn(&mut self, name: SequenceHash, known: T, age: Age) {
        let (wanted, other) = match age {
            Age::Young => (&mut self.young, &mut self.old),
            Age::Old => (&mut self.old, &mut self.young),
        };
        let generation = if wanted.len() < self.generation_max { wanted } else { other };
        if generation.len() < self.generation_max {
            generation.insert(name, known);
        }
    }

    pub(super) fn insert(&mut self, name: SequenceHash, known: T) {
        if self.young.len() >= self.generation_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, known);
    }

    /// The same about each of several names; if none, what was known of them is forgotten.
    pub(super) fn set(&mut self, names: &[SequenceHash], known: Option<T>) {
        match known {
            Some(known) => names.iter().for_each(|&name| self.insert(name, known)),
            None if self.young.is_empty() && self.old.is_empty() => {}
            None => {
                for name in names {
                    self.young.remove(name);
                    self.old.remove(name);
                }
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.generation_max);
    }
}
