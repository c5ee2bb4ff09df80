//! A history, ordered by what is asked of it.

use std::time::Instant;

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{LocalHash, SequenceHash, Tier, WorkerRank};

use super::history::{ClearCause, Remembered};
use super::walk::{Names, add_names_at};

/// When a rank removed a block, and from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Removal {
    pub(crate) at: Instant,
    pub(crate) tier: Tier,
}

/// When everything that a rank held was forgotten, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clear {
    pub(crate) at: Instant,
    pub(crate) cause: ClearCause,
}

/// The latest of each thing that happened.
#[derive(Debug, Default)]
pub(super) struct Past {
    stored: KeyedMap<(WorkerRank, SequenceHash), Instant>,
    removed: KeyedMap<(WorkerRank, SequenceHash), Removal>,
    cleared: KeyedMap<WorkerRank, Clear>,
    followers: KeyedMap<Option<SequenceHash>, Vec<(SequenceHash, LocalHash)>>,
}

impl Past {
    pub(super) fn new(remembered: &Remembered) -> Self {
        let mut past = Self::default();
        for stored in &remembered.stored {
            past.stored.insert((stored.rank, stored.sequence), stored.at);
            past.followers.entry(stored.parent).or_default().push((stored.sequence, stored.local));
        }
        for removed in &remembered.removed {
            let removal = Removal { at: removed.at, tier: removed.tier };
            past.removed.insert((removed.rank, removed.sequence), removal);
        }
        for cleared in &remembered.cleared {
            past.cleared.insert(cleared.rank, Clear { at: cleared.at, cause: cleared.cause });
        }
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

    /// When `rank` stored the block, if it is remembered.
    pub(super) fn stored(&self, rank: WorkerRank, sequence: SequenceHash) -> Option<Instant> {
        self.stored.get(&(rank, sequence)).copied()
    }

    pub(super) fn removed(&self, rank: WorkerRank, sequence: SequenceHash) -> Option<Removal> {
        self.removed.get(&(rank, sequence)).copied()
    }

    pub(super) fn cleared(&self, rank: WorkerRank) -> Option<Clear> {
        self.cleared.get(&rank).copied()
    }
}
