//! What happened to a model's blocks lately, for whoever asks later.

use std::collections::VecDeque;
use std::time::Instant;

use flash_indexer_core::{BlockEvent, LocalHash, SequenceHash, Tier, WorkerRank};
use parking_lot::Mutex;

/// Clears remembered for each model.
const CLEARS_MAX: usize = 1_024;

/// The last blocks stored and removed, and the last caches cleared, of one model.
///
/// Kept by the model's writer, off the way of queries: one lock for an event that nobody else wants, and
/// a few words for each block. What is older than the bound is forgotten.
#[derive(Debug)]
pub(crate) struct History {
    blocks_max: usize,
    remembered: Mutex<Remembered>,
}

/// A history at one moment, the latest last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remembered {
    pub(super) stored: VecDeque<StoredBlock>,
    pub(super) removed: VecDeque<RemovedBlock>,
    pub(super) cleared: VecDeque<ClearedRank>,
}

/// A block that a rank has told of: which name its content had.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredBlock {
    pub(super) at: Instant,
    pub(super) rank: WorkerRank,
    pub(super) sequence: SequenceHash,
    pub(super) parent: Option<SequenceHash>,
    pub(super) local: LocalHash,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RemovedBlock {
    pub(super) at: Instant,
    pub(super) rank: WorkerRank,
    pub(super) tier: Tier,
    pub(super) sequence: SequenceHash,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ClearedRank {
    pub(super) at: Instant,
    pub(super) rank: WorkerRank,
    pub(super) cause: ClearCause,
}

/// Why a rank's blocks were all forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClearCause {
    /// The engine dropped its cache.
    Engine,
    /// The service took the engine's cache to be empty: it has started again, or is listened to no more.
    Service,
}

impl History {
    /// Remembers so many stored and so many removed blocks; none costs nothing.
    pub(crate) fn new(blocks_max: usize) -> Self {
        Self { blocks_max, remembered: Mutex::default() }
    }

    /// An event of a rank was applied.
    pub(crate) fn note(&self, rank: WorkerRank, event: &BlockEvent, at: Instant) {
        if self.blocks_max == 0 {
            return;
        }
        let mut remembered = self.remembered.lock();
        match event {
            BlockEvent::Stored { parent, blocks, .. } => {
                let mut parent = *parent;
                for block in blocks {
                    let stored = StoredBlock { at, rank, sequence: block.sequence, parent, local: block.local };
                    push(&mut remembered.stored, stored, self.blocks_max);
                    parent = Some(block.sequence);
                }
            }
            BlockEvent::Removed { tier, blocks, .. } => {
                for &sequence in blocks {
                    let removed = RemovedBlock { at, rank, tier: *tier, sequence };
                    push(&mut remembered.removed, removed, self.blocks_max);
                }
            }
            BlockEvent::Cleared => remembered.clear(rank, ClearCause::Engine, at),
            BlockEvent::Copied { .. } => {}
        }
    }

    /// All that a rank held was forgotten by the service itself.
    pub(crate) fn forgotten(&self, rank: WorkerRank, at: Instant) {
        if self.blocks_max > 0 {
            self.remembered.lock().clear(rank, ClearCause::Service, at);
        }
    }

    /// A copy of what is remembered: the writer waits for the copy, not for its reader.
    pub(crate) fn remembered(&self) -> Remembered {
        self.remembered.lock().clone()
    }
}

impl Remembered {
    fn clear(&mut self, rank: WorkerRank, cause: ClearCause, at: Instant) {
        push(&mut self.cleared, ClearedRank { at, rank, cause }, CLEARS_MAX);
    }
}

fn push<T>(list: &mut VecDeque<T>, item: T, items_max: usize) {
    if list.len() >= items_max {
        list.pop_front();
    }
    list.push_back(item);
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::{Block, DpRank, RemovedCopies, WorkerId};

    use super::*;

    #[test]
    fn the_latest_blocks_are_remembered_with_their_parents() {
        let rank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
        let block = |hash| Block { sequence: SequenceHash(hash), local: LocalHash(10 * hash) };
        let blocks = [1, 2, 3].map(block).to_vec();
        let stored = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 };
        let blocks = [3, 2, 1].map(SequenceHash).to_vec();
        let removed = BlockEvent::Removed { tier: Tier::Host, blocks, copies: RemovedCopies::One };
        let note_all = |history: &History| {
            for event in [&stored, &removed, &BlockEvent::Cleared] {
                history.note(rank, event, Instant::now());
            }
            history.forgotten(rank, Instant::now());
            history.remembered()
        };
        let remembered = note_all(&History::new(2));
        let parents: Vec<_> = remembered.stored.iter().map(|stored| (stored.sequence.0, stored.parent)).collect();
        assert_eq!(parents, [(2, Some(SequenceHash(1))), (3, Some(SequenceHash(2)))]);
        assert_eq!(remembered.removed.iter().map(|removed| removed.sequence.0).collect::<Vec<_>>(), [2, 1]);
        let causes: Vec<_> = remembered.cleared.iter().map(|cleared| cleared.cause).collect();
        assert_eq!(causes, [ClearCause::Engine, ClearCause::Service]);

        let nothing = note_all(&History::new(0));
        assert!(nothing.stored.is_empty() && nothing.removed.is_empty() && nothing.cleared.is_empty());
    }
}
