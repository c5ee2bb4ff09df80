//! Ranks with waiting blocks, which a writer checks after deferred work of an index.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Weak};

use flash_indexer_core::DpRank;

use super::listener::Listener;

/// Ranks that may hold blocks whose parent was never stored, by listener. Deferred work of the index changes their number
/// without an event.
#[derive(Default)]
pub(super) struct WaitingRanks {
    listeners: BTreeMap<(u64, DpRank), Weak<Listener>>,
    /// The rank that was checked last.
    checked: Option<(u64, DpRank)>,
}

impl WaitingRanks {
    pub(super) fn len(&self) -> usize {
        self.listeners.len()
    }

    pub(super) fn insert(&mut self, listener: &Arc<Listener>, dp_rank: DpRank) {
        self.listeners.insert((listener.id, dp_rank), Arc::downgrade(listener));
    }

    /// Takes the rank after the one that was taken last.
    pub(super) fn take_next(&mut self) -> Option<(DpRank, Weak<Listener>)> {
        let after = self.checked.map_or(Unbounded, Excluded);
        let next = self.listeners.range((after, Unbounded)).next().or_else(|| self.listeners.first_key_value());
        let key = *next?.0;
        self.checked = Some(key);
        self.listeners.remove(&key).map(|listener| (key.1, listener))
    }
}
