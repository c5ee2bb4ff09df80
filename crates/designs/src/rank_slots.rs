//! Slot numbers of ranks, so that sets of ranks are small bitsets.

use flash_indexer_core::WorkerRank;
use rustc_hash::FxHashMap;

/// The ranks that hold blocks, each with a slot number and a design's state of the rank. [`RankSlots::release`] frees a
/// number for reuse.
#[derive(Debug, Clone, Default)]
pub(super) struct RankSlots<T> {
    slots: Vec<Option<(WorkerRank, T)>>,
    by_rank: FxHashMap<WorkerRank, u32>,
    free: Vec<u32>,
}

impl<T> RankSlots<T> {
    /// The slot of a rank; none if the rank has none.
    pub(super) fn slot(&self, rank: WorkerRank) -> Option<u32> {
        self.by_rank.get(&rank).copied()
    }

    /// Assigns a free slot to a rank that has none, and returns it.
    pub(super) fn insert(&mut self, rank: WorkerRank, state: T) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 ranks")
        });
        self.slots[slot as usize] = Some((rank, state));
        self.by_rank.insert(rank, slot);
        slot
    }

    /// Frees the slot of a rank and drops its state.
    pub(super) fn release(&mut self, slot: u32) {
        if let Some((rank, _)) = self.slots[slot as usize].take() {
            self.by_rank.remove(&rank);
            self.free.push(slot);
        }
    }

    /// The rank in a slot; none if the slot is free.
    pub(super) fn rank(&self, slot: u32) -> Option<WorkerRank> {
        self.at(slot).map(|&(rank, _)| rank)
    }

    /// The rank and the state in a slot; none if the slot is free.
    pub(super) fn at(&self, slot: u32) -> Option<&(WorkerRank, T)> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// The state in a slot that is in use.
    pub(super) fn state_mut(&mut self, slot: u32) -> &mut T {
        &mut self.slots[slot as usize].as_mut().expect("the slot is in use").1
    }

    pub(super) fn state(&self, rank: WorkerRank) -> Option<&T> {
        self.at(self.slot(rank)?).map(|(_, state)| state)
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = WorkerRank> {
        self.by_rank.keys().copied()
    }
}
