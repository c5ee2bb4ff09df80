//! Buffers of a query, which later queries reuse.

use super::branching::Branches;
use super::matches::{Depths, Step};
use super::published::holdings::Holder;
use super::published::rank_table::RankSlot;

/// Buffers of a query.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) path: Vec<Step>,
    pub(super) depths: Depths,
    pub(super) branches: Branches,
    /// Holders with the deepest matches and their depths, when the query asked only for those.
    pub(super) top: Vec<(Holder, u32)>,
    pub(super) levelled: LevelledRanks,
}

/// Indexes of the matches of ranks with several levels, in memory that queries reuse.
#[derive(Debug, Default)]
pub(super) struct LevelledRanks {
    /// Indexed by slot: the index of the match plus one, or zero.
    by_slot: Vec<u32>,
    listed: Vec<RankSlot>,
}

impl LevelledRanks {
    /// The index of the rank's match; `next` if it has none yet.
    pub(super) fn index_of(&mut self, slot: RankSlot, next: usize) -> usize {
        let at = slot.0 as usize;
        if at >= self.by_slot.len() {
            self.by_slot.resize(at + 1, 0);
        }
        if self.by_slot[at] == 0 {
            self.by_slot[at] = next as u32 + 1;
            self.listed.push(slot);
        }
        self.by_slot[at] as usize - 1
    }

    pub(super) fn clear(&mut self) {
        for slot in self.listed.drain(..) {
            self.by_slot[slot.0 as usize] = 0;
        }
    }
}
