//! Slot numbers of ranks for concurrent readers.

use std::sync::Arc;

use flash_indexer_core::{MatchScores, WorkerRank};
use parking_lot::RwLock;

use super::active_ranks::Depths;
use super::rank_slots::RankSlots;

/// [`RankSlots`] that threads share.
///
/// A slot can be reused for another rank while a query runs. So a query takes a snapshot at its start, and at its end leaves
/// out the ranks whose slot was released in between.
#[derive(Debug, Default)]
pub(super) struct RankTable<T> {
    slots: RwLock<Snapshot<T>>,
}

/// The slots at one moment.
pub(super) type Snapshot<T> = Arc<RankSlots<Arc<T>>>;

impl<T: Default> RankTable<T> {
    /// The current slots.
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
            // A rank that is inserted again gets a new state, and the snapshot keeps the old one alive, so their addresses
            // differ.
            let ((rank, state_before), (_, state_after)) = (before.at(slot)?, after.at(slot)?);
            Arc::ptr_eq(state_before, state_after).then_some(*rank)
        })
    }

    pub(super) fn get(&self, rank: WorkerRank) -> Option<Arc<T>> {
        self.slots.read().state(rank).cloned()
    }

    /// The slot and state of a rank, which is inserted if it has none. An insertion copies the slots if a query holds a
    /// snapshot.
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

    /// Frees a slot. Copies the slots if a query holds a snapshot.
    pub(super) fn release(&self, slot: u32) {
        Arc::make_mut(&mut self.slots.write()).release(slot);
    }
}
