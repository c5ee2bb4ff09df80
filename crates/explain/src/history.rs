//! Recent changes of a model's blocks, kept for explanations.

use std::collections::VecDeque;
use std::time::Instant;

use flash_indexer_core::{AppliedChanges, BlockEvent, LocalHash, RemovedCopies, SequenceHash, Tier, WorkerRank};
use flash_indexer_types::{ClearCause, EventContext, Ordinal};
use parking_lot::Mutex;

use crate::loss::{Clear, Removal};

/// Clears kept for each model.
const CLEARS_MAX: usize = 1_024;

/// The latest blocks that were stored, copied and removed, and the latest clears, of one model.
///
/// The model's writer records each event under one uncontended lock. Queries never take that lock. A block costs a few
/// words. Entries beyond the limit evict the oldest ones.
#[derive(Debug)]
pub struct History {
    blocks_max: usize,
    logs: Mutex<HistorySnapshot>,
}

/// A history at one moment: one log for each kind of event, each oldest first.
///
/// Ordinals order events across logs. Times do not: an engine stamps batches by its own clock, and a replay repeats old
/// stamps.
#[derive(Debug, Clone, Default)]
pub struct HistorySnapshot {
    /// Ordinal of the last event.
    last: Ordinal,
    pub(super) stored: Log<StoredBlock>,
    pub(super) copied: Log<CopiedBlock>,
    pub(super) removed: Log<RemovedBlock>,
    pub(super) cleared: Log<ClearedRank>,
}

/// The latest events of one kind.
#[derive(Debug, Clone)]
pub(super) struct Log<T> {
    /// The entries, oldest first.
    pub(super) entries: VecDeque<(Ordinal, T)>,
    /// Ordinal from which on the log has every event of its kind. Zero if no entry was evicted.
    pub(super) complete_from: Ordinal,
}

/// A stored block, with its content and its parent.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredBlock {
    pub(super) rank: WorkerRank,
    pub(super) tier: Tier,
    pub(super) sequence: SequenceHash,
    pub(super) parent: Option<SequenceHash>,
    pub(super) local: LocalHash,
    /// Reference count of the event. Zero if the index may have rejected the block.
    pub(super) copies: u32,
}

/// A copy, in one tier, of a block that the rank holds in another tier.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopiedBlock {
    pub(super) rank: WorkerRank,
    pub(super) tier: Tier,
    pub(super) sequence: SequenceHash,
    /// Whether the index held every block of the event. The index ignores a copy of a block that is not held.
    pub(super) is_known: bool,
}

/// A removal of a block from one tier.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemovedBlock {
    pub(super) rank: WorkerRank,
    pub(super) sequence: SequenceHash,
    pub(super) removal: Removal,
    pub(super) copies: RemovedCopies,
}

/// A removal of every block of a rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClearedRank {
    pub(super) rank: WorkerRank,
    pub(super) clear: Clear,
}

impl History {
    /// Creates a history of up to `blocks_max` stored, copied and removed blocks each. Zero disables it.
    pub fn new(blocks_max: usize) -> Self {
        Self { blocks_max, logs: Mutex::default() }
    }

    /// Records an event of a rank and its effect on the index.
    pub fn record(
        &self,
        rank: WorkerRank,
        event: &BlockEvent,
        applied: &AppliedChanges,
        context: impl Into<EventContext>,
    ) {
        let EventContext { at, removal: reason } = context.into();
        if self.blocks_max == 0 {
            return;
        }
        let mut logs = self.logs.lock();
        let ordinal = logs.next_ordinal();
        match event {
            BlockEvent::Stored { tier, parent, blocks, copies } => {
                let (tier, copies) = (*tier, if applied.refused > 0 { 0 } else { *copies });
                let mut parent = *parent;
                for block in blocks {
                    let (sequence, local) = (block.sequence, block.local);
                    let stored = StoredBlock { rank, tier, sequence, parent, local, copies };
                    logs.stored.push(ordinal, stored, self.blocks_max);
                    parent = Some(block.sequence);
                }
            }
            BlockEvent::Copied { tier, blocks } => {
                let is_known = applied.unknown == 0;
                for &sequence in blocks {
                    let copied = CopiedBlock { rank, tier: *tier, sequence, is_known };
                    logs.copied.push(ordinal, copied, self.blocks_max);
                }
            }
            BlockEvent::Removed { tier, blocks, copies } => {
                let removal = Removal { at, tier: *tier, reason };
                for &sequence in blocks {
                    let removed = RemovedBlock { rank, sequence, removal, copies: *copies };
                    logs.removed.push(ordinal, removed, self.blocks_max);
                }
            }
            BlockEvent::Cleared => {
                let clear = Clear { at, cause: ClearCause::Engine };
                logs.cleared.push(ordinal, ClearedRank { rank, clear }, CLEARS_MAX);
            }
        }
    }

    /// Records that the service removed every block of a rank.
    pub fn record_clear(&self, rank: WorkerRank, cause: ClearCause, at: Instant) {
        if self.blocks_max > 0 {
            let mut logs = self.logs.lock();
            let ordinal = logs.next_ordinal();
            logs.cleared.push(ordinal, ClearedRank { rank, clear: Clear { at, cause } }, CLEARS_MAX);
        }
    }

    /// Ordinal of the last recorded event; zero before the first one.
    pub fn last(&self) -> Ordinal {
        self.logs.lock().last
    }

    /// A copy of the logs. The writer waits only while they are copied.
    pub fn snapshot(&self) -> HistorySnapshot {
        self.logs.lock().clone()
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
            && let Some((evicted, _)) = self.entries.pop_front()
        {
            self.complete_from = evicted + 1;
        }
        self.entries.push_back((ordinal, entry));
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
    fn a_history_keeps_the_latest_blocks_with_their_parents() {
        let rank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
        let block = |hash| Block { sequence: SequenceHash(hash), local: LocalHash(10 * hash) };
        let blocks = [1, 2, 3].map(block).to_vec();
        let stored = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 };
        let blocks = [3, 2, 1].map(SequenceHash).to_vec();
        let removed = BlockEvent::Removed { tier: Tier::Host, blocks, copies: RemovedCopies::One };
        let record_all = |history: &History| {
            for event in [&stored, &removed, &BlockEvent::Cleared] {
                history.record(rank, event, &AppliedChanges::default(), Instant::now());
            }
            history.record_clear(rank, ClearCause::Service, Instant::now());
            history.snapshot()
        };
        let snapshot = record_all(&History::new(2));
        let stored = snapshot.stored.entries.iter();
        let parents: Vec<_> = stored.map(|(_, stored)| (stored.sequence.0, stored.parent)).collect();
        assert_eq!(parents, [(2, Some(SequenceHash(1))), (3, Some(SequenceHash(2)))]);
        assert_eq!(snapshot.removed.entries.iter().map(|(_, removed)| removed.sequence.0).collect::<Vec<_>>(), [2, 1]);
        let causes: Vec<_> = snapshot.cleared.entries.iter().map(|(_, cleared)| cleared.clear.cause).collect();
        assert_eq!(causes, [ClearCause::Engine, ClearCause::Service]);
        let complete = (snapshot.stored.complete_from, snapshot.cleared.complete_from);
        assert_eq!(complete, (2, 0), "a block of the first event was evicted, and no clear");

        let disabled = record_all(&History::new(0));
        let entries = disabled.stored.entries.len() + disabled.removed.entries.len() + disabled.cleared.entries.len();
        assert_eq!(entries, 0);
    }
}
