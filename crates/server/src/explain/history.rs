//! What happened to a model's blocks lately, for whoever asks later.

use std::collections::VecDeque;
use std::time::Instant;

use flash_indexer_core::{Applied, BlockEvent, LocalHash, RemovedCopies, SequenceHash, Tier, WorkerRank};
use flash_indexer_wire::ClearReason;
use parking_lot::Mutex;

/// Clears remembered for each model.
const CLEARS_MAX: usize = 1_024;

/// The last blocks stored and removed, and the last caches cleared, of one model.
///
/// OwnedRank by the model's writer, off the way of queries: one lock for an event that nobody else wants, and
/// a few words for each block. What is older than the bound is forgotten.
#[derive(Debug)]
pub(crate) struct History {
    blocks_max: usize,
    remembered: Mutex<HistorySnapshot>,
}

/// A history at one moment: one log for each kind of event, each oldest first. Ordinals order events across logs.
#[derive(Debug, Clone, Default)]
pub(crate) struct HistorySnapshot {
    /// Ordinal of the last event.
    last: Ordinal,
    pub(super) stored: Log<StoredBlock>,
    pub(super) copied: Log<CopiedBlock>,
    pub(super) removed: Log<RemovedBlock>,
    pub(super) cleared: Log<ClearedRank>,
}

/// Position of an event among all events of a model. Times do not order events: an engine stamps batches by its own
/// clock, and a replay brings old stamps again.
pub(crate) type Ordinal = u64;

/// The latest events of one kind.
#[derive(Debug, Clone)]
pub(super) struct Log<T> {
    entries: VecDeque<(Ordinal, T)>,
    complete_from: Ordinal,
}

/// A stored block, with its content and its place in the sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredBlock {
    pub(super) rank: WorkerRank,
    pub(super) tier: Tier,
    pub(super) sequence: SequenceHash,
    pub(super) parent: Option<SequenceHash>,
    pub(super) local: LocalHash,
    /// Zero if the index may have refused the block.
    pub(super) copies: u32,
}

/// A further copy of a block that the rank holds in another tier.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopiedBlock {
    pub(super) rank: WorkerRank,
    pub(super) tier: Tier,
    pub(super) sequence: SequenceHash,
    /// Whether the index held every block of the event; a copy of a block that is not held changes nothing.
    pub(super) is_known: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RemovedBlock {
    pub(super) at: Instant,
    pub(super) rank: WorkerRank,
    pub(super) tier: Tier,
    pub(super) sequence: SequenceHash,
    pub(super) copies: RemovedCopies,
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
    /// The service forgot the rank because of its stream.
    Stream(ClearReason),
    /// The service forgot the rank for another reason: it was unregistered, or its state could not be used.
    Service,
}

impl History {
    /// Remembers up to `blocks_max` stored, copied and removed blocks each. Zero disables the history.
    pub(crate) fn new(blocks_max: usize) -> Self {
        Self { blocks_max, remembered: Mutex::default() }
    }

    /// Records an event of a rank, with what the index made of it. `at` is the time of the event, not of its arrival.
    pub(crate) fn note(&self, rank: WorkerRank, event: &BlockEvent, applied: &Applied, at: Instant) {
        if self.blocks_max == 0 {
            return;
        }
        let mut remembered = self.remembered.lock();
        let ordinal = remembered.next_ordinal();
        match event {
            BlockEvent::Stored { tier, parent, blocks, copies } => {
                let (tier, copies) = (*tier, if applied.refused > 0 { 0 } else { *copies });
                let mut parent = *parent;
                for block in blocks {
                    let (sequence, local) = (block.sequence, block.local);
                    let stored = StoredBlock { rank, tier, sequence, parent, local, copies };
                    remembered.stored.push(ordinal, stored, self.blocks_max);
                    parent = Some(block.sequence);
                }
            }
            BlockEvent::Copied { tier, blocks } => {
                let is_known = applied.unknown == 0;
                for &sequence in blocks {
                    let copied = CopiedBlock { rank, tier: *tier, sequence, is_known };
                    remembered.copied.push(ordinal, copied, self.blocks_max);
                }
            }
            BlockEvent::Removed { tier, blocks, copies } => {
                for &sequence in blocks {
                    let removed = RemovedBlock { at, rank, tier: *tier, sequence, copies: *copies };
                    remembered.removed.push(ordinal, removed, self.blocks_max);
                }
            }
            BlockEvent::Cleared => {
                remembered.cleared.push(ordinal, ClearedRank { at, rank, cause: ClearCause::Engine }, CLEARS_MAX);
            }
        }
    }

    /// Records that the service itself forgot everything that a rank held.
    pub(crate) fn forgotten(&self, rank: WorkerRank, cause: ClearCause, at: Instant) {
        if self.blocks_max > 0 {
            let mut remembered = self.remembered.lock();
            let ordinal = remembered.next_ordinal();
            remembered.cleared.push(ordinal, ClearedRank { at, rank, cause }, CLEARS_MAX);
        }
    }

    /// The ordinal of the last recorded event; zero before the first one.
    pub(crate) fn last(&self) -> Ordinal {
        self.remembered.lock().last
    }

    /// A copy of what is remembered: the writer waits for the copy, not for its reader.
    pub(crate) fn remembered(&self) -> HistorySnapshot {
        self.remembered.lock().clone()
    }
}

impl HistorySnapshot {
    fn next_ordinal(&mut self) -> Ordinal {
        self.last += 1;
        self.last
    }
}

impl<T> Log<T> {
    fn push(&mut self, ordinal: Ordinal, entry: T, entries_max: usize) {
        if self.entries.len() >= entries_max
            && let Some((forgotten, _)) = self.entries.pop_front()
        {
            self.complete_from = forgotten + 1;
        }
        self.entries.push_back((ordinal, entry));
    }

    /// The entries, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Ordinal, T)> {
        self.entries.iter()
    }

    /// Every event of this kind from here on is in the log. Zero if none was ever dropped.
    pub(super) fn complete_from(&self) -> Ordinal {
        self.complete_from
    }
}

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), complete_from: 0 }
    }
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
                history.note(rank, event, &Applied::default(), Instant::now());
            }
            history.forgotten(rank, ClearCause::Service, Instant::now());
            history.remembered()
        };
        let remembered = note_all(&History::new(2));
        let parents: Vec<_> = remembered.stored.iter().map(|(_, stored)| (stored.sequence.0, stored.parent)).collect();
        assert_eq!(parents, [(2, Some(SequenceHash(1))), (3, Some(SequenceHash(2)))]);
        assert_eq!(remembered.removed.iter().map(|(_, removed)| removed.sequence.0).collect::<Vec<_>>(), [2, 1]);
        let causes: Vec<_> = remembered.cleared.iter().map(|(_, cleared)| cleared.cause).collect();
        assert_eq!(causes, [ClearCause::Engine, ClearCause::Service]);
        let complete = (remembered.stored.complete_from(), remembered.cleared.complete_from());
        assert_eq!(complete, (2, 0), "a block of the first event was dropped, and no clear");

        let nothing = note_all(&History::new(0));
        assert_eq!(nothing.stored.iter().count() + nothing.removed.iter().count() + nothing.cleared.iter().count(), 0);
    }
}
