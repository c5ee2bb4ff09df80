//! A map of bounded size that forgets what was not used for longest.

use std::collections::HashMap;

/// Values by name. Making room takes a look at every entry, which is meant for a thousand of them at most.
#[derive(Debug)]
pub(super) struct Recent<V> {
    entries: HashMap<String, Entry<V>>,
    uses: u64,
    entries_max: usize,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    used: u64,
}

impl<V> Recent<V> {
    /// Keeps at least one entry.
    pub(super) fn new(entries_max: usize) -> Self {
        Self { entries: HashMap::new(), uses: 0, entries_max: entries_max.max(1) }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The value, which counts as used.
    pub(super) fn get(&mut self, name: &str) -> Option<&mut V> {
        self.uses += 1;
        let entry = self.entries.get_mut(name)?;
        entry.used = self.uses;
        Some(&mut entry.value)
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<V> {
        self.entries.remove(name).map(|entry| entry.value)
    }

    /// Puts a value in and gives the one that had to go for it.
    pub(super) fn insert(&mut self, name: String, value: V) -> Option<V> {
        self.uses += 1;
        let is_new = !self.entries.contains_key(&name);
        let gone = if is_new && self.entries.len() >= self.entries_max { self.remove_oldest() } else { None };
        self.entries.insert(name, Entry { value, used: self.uses });
        gone
    }

    fn remove_oldest(&mut self) -> Option<V> {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(name, _)| name.clone())?;
        self.remove(&oldest)
    }
}
