//! Buffer of messages that wait for earlier ones.

use std::collections::BTreeMap;

/// Messages by sequence number, with the total of their bytes.
#[derive(Debug)]
pub(super) struct ReorderBuffer<P> {
    messages: BTreeMap<u64, P>,
    bytes: usize,
}

impl<P> Default for ReorderBuffer<P> {
    fn default() -> Self {
        Self { messages: BTreeMap::new(), bytes: 0 }
    }
}

impl<P: AsRef<[u8]>> ReorderBuffer<P> {
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.messages.first_key_value().map(|(&sequence, _)| sequence)
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.messages.last_key_value().map(|(&sequence, _)| sequence)
    }

    pub(super) fn get(&self, sequence: u64) -> Option<&P> {
        self.messages.get(&sequence)
    }

    /// Whether another message of this size stays within the limits.
    pub(super) fn has_room(&self, bytes: usize, messages_max: usize, bytes_max: usize) -> bool {
        self.messages.len() < messages_max && self.bytes.saturating_add(bytes) <= bytes_max
    }

    /// Adds a message, unless its sequence number is taken.
    pub(super) fn insert(&mut self, sequence: u64, payload: P) {
        let bytes = payload.as_ref().len();
        if let std::collections::btree_map::Entry::Vacant(entry) = self.messages.entry(sequence) {
            entry.insert(payload);
            self.bytes += bytes;
        }
    }

    pub(super) fn pop_first(&mut self) -> Option<(u64, P)> {
        let (sequence, payload) = self.messages.pop_first()?;
        self.bytes -= payload.as_ref().len();
        Some((sequence, payload))
    }

    /// Drops the messages with lower sequence numbers.
    pub(super) fn drop_before(&mut self, sequence: u64) {
        while self.first().is_some_and(|first| first < sequence) {
            self.pop_first();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
