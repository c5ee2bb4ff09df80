//! Ranks and their slots where many threads look them up at once.

use std::sync::Arc;

use parking_lot::RwLock;

use super::rank_slots::RankSlots;
use crate::WorkerRank;

/// [`RankSlots`] that threads share. A slot's number may be reused while a query is under way, so a
/// query translates slots by the snapshot that it took at its start.
#[derive(Debug)]
pub(super) struct RankTable<T> {
    slots: RwLock<Arc<RankSlots<Arc<T>>>>,
}

impl<T> Default for RankTable<T> {
    fn default() -> Self {
        Self { slots: RwLock::default() }
    }
}

impl<T: Default> RankTable<T> {
    /// Ranks and slots as they are now.
    pub(super) fn snapshot(&self) -> Arc<RankSlots<Arc<T>>> {
        Arc::clone(&self.slots.read())
    }

    pub(super) fn get(&self, rank: WorkerRank) -> Option<Arc<T>> {
        self.slots.read().state(rank).cloned()
    }

    /// A rank's slot and state. A new one copies the table if a query has a snapshot of it.
    pub(super) fn get_or_insert(&self, rank: WorkerRank) -> (u32, Arc<T>) {
        let known = |slots: &RankSlots<Arc<T>>| Some((slots.slot(rank)?, Arc::clone(slots.state(rank)?)));
        if let Some(known) = known(&self.slots.read()) {
            return known;
        }
        let mut slots = self.slots.write();
        known(&slots).unwrap_or_else(|| {
            let state = Arc::<T>::default();
            (Arc::make_mut(&mut slots).insert(rank, Arc::clone(&state)), state)
        })
    }

    pub(super) fn release(&self, slot: u32) {
        Arc::make_mut(&mut self.slots.write()).release(slot);
    }
}
