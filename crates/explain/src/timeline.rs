//! A model's history, sorted by rank and block.

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{LocalHash, SequenceHash, WorkerRank};
use flash_indexer_types::Ordinal;

use crate::history::{ClearedRank, HistorySnapshot, RemovedBlock};
use crate::loss::{BlockChange, Clear, HistoryStart, Loss, loss};
use crate::walk::{KnownHashes, add_known_hashes};

/// Changes of each block and clears of each rank, in order.
#[derive(Debug, Default)]
pub(super) struct BlockTimeline {
    changes: KeyedMap<(WorkerRank, SequenceHash), Vec<(Ordinal, BlockChange)>>,
    clears: KeyedMap<WorkerRank, Vec<(Ordinal, Clear)>>,
    complete_from: HistoryStart,
    /// Recorded blocks by their parent.
    children: KeyedMap<Option<SequenceHash>, Vec<(SequenceHash, LocalHash)>>,
}

impl BlockTimeline {
    pub(super) fn new(history: &HistorySnapshot) -> Self {
        let mut timeline = Self::default();
        let changes = &mut timeline.changes;
        let mut add = |rank, sequence, ordinal, change| {
            changes.entry((rank, sequence)).or_default().push((ordinal, change));
        };
        for &(ordinal, stored) in &history.stored.entries {
            let change = BlockChange::Stored { tier: stored.tier, local: stored.local, copies: stored.copies };
            add(stored.rank, stored.sequence, ordinal, change);
            timeline.children.entry(stored.parent).or_default().push((stored.sequence, stored.local));
        }
        for &(ordinal, copied) in &history.copied.entries {
            let change = BlockChange::Copied { tier: copied.tier, is_known: copied.is_known };
            add(copied.rank, copied.sequence, ordinal, change);
        }
        for &(ordinal, RemovedBlock { rank, sequence, removal, copies }) in &history.removed.entries {
            add(rank, sequence, ordinal, BlockChange::Removed { removal, copies });
        }
        // One event can change a block twice, so the sort must be stable.
        changes.values_mut().for_each(|changes| changes.sort_by_key(|&(ordinal, _)| ordinal));
        for &(ordinal, ClearedRank { rank, clear }) in &history.cleared.entries {
            timeline.clears.entry(rank).or_default().push((ordinal, clear));
        }
        timeline.complete_from = HistoryStart {
            added: history.stored.complete_from.max(history.copied.complete_from),
            removed: history.removed.complete_from,
            cleared: history.cleared.complete_from,
        };
        timeline
    }

    /// Adds the sequence hashes that recorded stores gave to the blocks of `query`.
    pub(super) fn add_sequence_hashes(&self, query: &[LocalHash], known: &mut KnownHashes) {
        let mut reached = vec![None];
        for (position, wanted) in query.iter().enumerate() {
            let children = reached.iter().filter_map(|parent| self.children.get(parent)).flatten();
            let found: Vec<_> = children.filter(|(_, local)| local == wanted).map(|&(child, _)| child).collect();
            add_known_hashes(known, position, &found);
            reached = known[position].iter().copied().map(Some).collect();
            if reached.is_empty() {
                // Children are found by the sequence hash of their parent, and this one has none.
                return;
            }
        }
    }

    /// The loss of a block that `rank` does not hold now, and the ordinal of the event that took it. None if no
    /// recorded event shows that the rank held it.
    pub(super) fn loss(&self, rank: WorkerRank, sequence: SequenceHash, local: LocalHash) -> Option<(Ordinal, Loss)> {
        let changes = self.changes.get(&(rank, sequence))?;
        let clears = self.clears.get(&rank).map_or(&[][..], Vec::as_slice);
        loss(changes, clears, self.complete_from, local)
    }
}
