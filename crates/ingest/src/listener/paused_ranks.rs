//! Paused ranks: their messages are buffered until their state is restored from a snapshot or a peer.

use std::collections::BTreeSet;

use flash_indexer_core::DpRank;
use flash_indexer_types::RankPosition;

/// Outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The stream is applied.
    Now,
    /// Other ranks of the same stream are still held.
    WaitingForOthers,
    /// The rank is not held, or not registered.
    NotHeld,
}

/// Paused ranks of one stream, and the positions of the released ones.
#[derive(Debug, Default)]
pub struct PausedRanks {
    held: BTreeSet<DpRank>,
    released: Vec<(DpRank, Option<RankPosition>)>,
}

impl PausedRanks {
    /// Holds a rank.
    pub fn hold(&mut self, dp_rank: DpRank) {
        self.held.insert(dp_rank);
    }

    /// Whether a rank is held.
    pub fn holds(&self, dp_rank: DpRank) -> bool {
        self.held.contains(&dp_rank)
    }

    /// Whether any rank is held.
    pub(crate) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// All ranks that are or were held.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = DpRank> {
        self.held.iter().copied().chain(self.released.iter().map(|(dp_rank, _)| *dp_rank))
    }

    /// Releases a rank, at the position of its restored state if there is one.
    pub fn release(&mut self, dp_rank: DpRank, position: Option<RankPosition>) -> ReleaseOutcome {
        if !self.held.remove(&dp_rank) {
            return ReleaseOutcome::NotHeld;
        }
        self.released.push((dp_rank, position));
        if self.held.is_empty() { ReleaseOutcome::Now } else { ReleaseOutcome::WaitingForOthers }
    }

    /// Released ranks, with the positions of their restored states.
    pub(crate) fn released(&self) -> Vec<(DpRank, Option<RankPosition>)> {
        self.released.clone()
    }
}
