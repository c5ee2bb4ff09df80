//! A history, ordered by what is asked of it.

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{LocalHash, SequenceHash, WorkerRank};

use super::history::HistorySnapshot;
use super::loss::{BlockChange, Clear, HistoryStart, Loss, Removal, loss};
use super::walk::{Names, add_names_at};
use flash_indexer_types::Ordinal;

/// What happened to each block and rank, in order.
#[derive(Debug, Default)]
pub(super) struct BlockTimeline {
    changes: KeyedMap<(WorkerRank, SequenceHash), Vec<(Ordinal, BlockChange)>>,
    clears: KeyedMap<WorkerRank, Vec<(Ordinal, Clear)>>,
    complete_from: HistoryStart,
    followers: KeyedMap<Option<SequenceHash>, Vec<(SequenceHash, LocalHash)>>,
}

impl BlockTimeline {
    pub(super) fn new(remembered: &HistorySnapshot) -> Self {
        let mut past = Self::default();
        let changes = &mut past.changes;
        let mut add = |rank, sequence, ordinal, change| {
            changes.entry((rank, sequence)).or_default().push((ordinal, change));
        };
        for &(ordinal, stored) in remembered.stored.iter() {
            let change = BlockChange::Stored { tier: stored.tier, local: stored.local, copies: stored.copies };
            add(stored.rank, stored.sequence, ordinal, change);
            past.followers.entry(stored.parent).or_default().push((stored.sequence, stored.local));
        }
        for &(ordinal, copied) in remembered.copied.iter() {
            let change = BlockChange::Copied { tier: copied.tier, is_known: copied.is_known };
            add(copied.rank, copied.sequence, ordinal, change);
        }
        for &(ordinal, removed) in remembered.removed.iter() {
            let removal = Removal { at: removed.at, tier: removed.tier };
            add(removed.rank, removed.sequence, ordinal, BlockChange::Removed { removal, copies: removed.copies });
        }
        // One event can name a block twice: the sort is stable.
        changes.values_mut().for_each(|changes| changes.sort_by_key(|&(ordinal, _)| ordinal));
        for &(ordinal, cleared) in remembered.cleared.iter() {
            let clear = Clear { at: cleared.at, cause: cleared.cause };
            past.clears.entry(cleared.rank).or_default().push((ordinal, clear));
        }
        past.complete_from = HistoryStart {
            added: remembered.stored.complete_from().max(remembered.copied.complete_from()),
            removed: remembered.removed.complete_from(),
            cleared: remembered.cleared.complete_from(),
        };
        past
    }

    /// Adds the names that blocks of `query` once had to those that they have.
    pub(super) fn add_names(&self, query: &[LocalHash], names: &mut Names) {
        let mut reached = vec![None];
        for (position, wanted) in query.iter().enumerate() {
            let followers = reached.iter().filter_map(|name| self.followers.get(name)).flatten();
            let found: Vec<_> = followers.filter(|(_, local)| local == wanted).map(|&(name, _)| name).collect();
            add_names_at(names, position, &found);
            reached = names[position].iter().copied().map(Some).collect();
            if reached.is_empty() {
                // Nobody knows the block's name, so nobody knows what follows it.
                return;
            }
        }
    }

    /// How `rank`, which does not hold the block now, lost it, and the ordinal of the event that took it. None if nothing
    /// remembered says that the rank held it.
    pub(super) fn loss(&self, rank: WorkerRank, sequence: SequenceHash, local: LocalHash) -> Option<(Ordinal, Loss)> {
        let changes = self.changes.get(&(rank, sequence))?;
        let clears = self.clears.get(&rank).map_or(&[][..], Vec::as_slice);
        loss(changes, clears, self.complete_from, local)
    }
}
