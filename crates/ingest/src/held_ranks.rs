//! Ranks whose stream is listened to, but not applied before their state has been taken over.

use std::collections::BTreeSet;

use flash_indexer_core::DpRank;
use flash_indexer_types::Position;

/// What a release did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The rank's stream is applied from now on.
    Now,
    /// Other ranks of the same stream are still held.
    WaitingForOthers,
    /// The rank is not held, or not registered.
    NotHeld,
}

/// Held ranks of one stream, and what is known of those that are held no more.
#[derive(Debug, Default)]
pub struct HeldRanks {
    held: BTreeSet<DpRank>,
    released: Vec<(DpRank, Option<Position>)>,
}

impl HeldRanks {
    pub fn hold(&mut self, dp_rank: DpRank) {
        self.held.insert(dp_rank);
    }

    pub fn holds(&self, dp_rank: DpRank) -> bool {
        self.held.contains(&dp_rank)
    }

    /// Every rank that was ever held.
    pub(super) fn ranks(&self) -> impl Iterator<Item = DpRank> {
        self.held.iter().copied().chain(self.released.iter().map(|(dp_rank, _)| *dp_rank))
    }

    /// The rank needs to be held no more, because it is known or because it is gone.
    pub fn release(&mut self, dp_rank: DpRank, position: Option<Position>) -> ReleaseOutcome {
        if !self.held.remove(&dp_rank) {
            return ReleaseOutcome::NotHeld;
        }
        self.released.push((dp_rank, position));
        if self.held.is_empty() { ReleaseOutcome::Now } else { ReleaseOutcome::WaitingForOthers }
    }

    /// What is known of the released ranks.
    pub(super) fn released(&self) -> Vec<(DpRank, Option<Position>)> {
        self.released.clone()
    }
}
