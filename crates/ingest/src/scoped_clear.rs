//! Clears of a part of a rank's cache. They become removals of its blocks, which histories and the shared store record.

use flash_indexer_core::groups::{ClearScope, GroupedIndex};
use flash_indexer_core::{DpRank, HeldReading, ReadingProgress, SharedIndex, WorkerId, WorkerRank};

use crate::change::Change;
use crate::event_parts::{EVENT_BLOCKS_MAX, divide};

/// A clear whose blocks are being listed, on the writer thread and in parts.
pub(super) struct ScopedClear {
    scope: ClearScope,
    reading: HeldReading,
}

impl ScopedClear {
    pub(super) fn new(worker: WorkerId, dp_rank: DpRank, scope: ClearScope) -> Self {
        Self { scope, reading: HeldReading::new(WorkerRank { worker, dp_rank }) }
    }

    /// Lists a bounded number of the rank's blocks. No event of the rank may be applied before the removals.
    pub(super) fn next_part(mut self, index: &GroupedIndex) -> NextPart {
        if self.scope.has_primary() && index.read_held(&mut self.reading, EVENT_BLOCKS_MAX) == ReadingProgress::More {
            return NextPart::Reading(self);
        }
        let rank = self.reading.rank();
        let mut changes = Vec::new();
        for removal in index.removals(rank, self.scope, &self.reading.into_blocks()) {
            divide(removal, |part| changes.push(Change::Event(rank.dp_rank, part)));
        }
        NextPart::Removals(changes)
    }
}

/// Result of a part of a scoped clear.
pub(super) enum NextPart {
    /// Blocks are left to be listed.
    Reading(ScopedClear),
    /// The removals of all blocks of the scope.
    Removals(Vec<Change>),
}
