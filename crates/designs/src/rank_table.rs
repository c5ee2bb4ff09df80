//! Ranks and their slots where many threads look them up at once.

use std::sync::Arc;

use flash_indexer_core::{MatchScores, WorkerRank};
use parking_lot::RwLock;

use super::matching::Depths;
use super::rank_slots::RankSlots;

/// [`RankSlots`] that threads share. A slot may go to another rank while a query is under way, so a
/// query takes a snapshot at its start and leaves out ranks that have lost their slot at its end.
#[derive(Debug)]
pub(super) struct RankTable<T> {
    slots: RwLock<Snapshot<T>>,
}

/// Ranks and slots at one moment.
pub(super) type Snapshot<T> = Arc<RankSlots<Arc<T>>>;

impl<T> Default for RankTable<T> {
    fn default() -> Self {
        Self { slots: RwLock::default() }
    }
}

impl<T: Default> RankTable<T> {
    /// Ranks and slots as they are now.
    pub(super) fn snapshot(&self) -> Snapshot<T> {
        Arc::clone(&self.slots.read())
    }

    /// The scores of a query that took the snapshot `before` at its start.
    pub(super) fn scores(&self, before: &Snapshot<T>, depths: Depths) -> MatchScores {
        let after = self.snapshot();
        if Arc::ptr_eq(before, &after) {
            return depths.into_scores(|slot| after.rank(slot));
        }
        depths.into_scores(|slot| {
            // A rank that comes back gets a new state, and this one lives as long as the snapshot.
            let ((rank, was), (_, is)) = (before.at(slot)?, after.at(slot)?);
            Arc::ptr_eq(was, is).then_some(*rank)
        })
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
