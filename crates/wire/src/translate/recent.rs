//! What is remembered of an engine's block names.

use flash_indexer_core::SequenceHash;
use rustc_hash::FxHashMap;

/// Something about each of the names that were used last. A name means one content, so an entry never
/// becomes wrong, only useless: the oldest are forgotten when there are too many, and what is used stays.
#[derive(Debug)]
pub(super) struct Recent<T> {
    young: FxHashMap<SequenceHash, T>,
    old: FxHashMap<SequenceHash, T>,
    generation_max: usize,
}

impl<T: Copy> Recent<T> {
    /// Remembers so many names in each of two generations.
    pub(super) fn new(generation_max: usize) -> Self {
        Self { young: FxHashMap::default(), old: FxHashMap::default(), generation_max }
    }

    pub(super) fn get(&mut self, name: SequenceHash) -> Option<T> {
        if let Some(&known) = self.young.get(&name) {
            return Some(known);
        }
        let known = self.old.remove(&name)?;
        self.insert(name, known);
        Some(known)
    }

    /// What is known, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SequenceHash, T)> {
        self.old.iter().chain(&self.young).map(|(&name, &known)| (name, known))
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
