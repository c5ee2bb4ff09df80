//! Trust states of ranks, computed from missing changes.

use std::sync::atomic::{AtomicU8, Ordering};

use flash_indexer_wire::{PendingReason, TrustBasis};

flash_indexer_core::named_enum! {
    /// Reliability of the index's content for a rank. A less reliable state is greater.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum TrustState {
        /// Every change since a known empty cache was applied, and nothing is known to be missing.
        Exact = "exact",
        /// Registered, and nothing received yet.
        Cold = "cold",
        /// Changes up to an earlier message were applied, and the messages after it are being replayed.
        Recovering = "recovering",
        /// Changes were lost, or the cache was not empty when the first one was received.
        Degraded = "degraded",
    }
}

/// Trust in one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankTrust {
    /// State of the rank.
    pub state: TrustState,
    /// The reason for the state, unless the rank is exact or cold.
    pub why: Option<String>,
}

impl RankTrust {
    pub(crate) const COLD: Self = Self { state: TrustState::Cold, why: None };
    pub(crate) const EXACT: Self = Self { state: TrustState::Exact, why: None };

    pub(crate) fn degraded(why: String) -> Self {
        Self { state: TrustState::Degraded, why: Some(why) }
    }

    /// Trust in a rank that also holds this number of blocks whose parent was never stored.
    pub(crate) fn with_waiting(self, blocks: usize) -> Self {
        if blocks == 0 || self.state != TrustState::Exact {
            return self;
        }
        Self::degraded(format!(
            "{blocks} blocks follow a parent that was never stored; the rank is exact again when the parent is stored or the cache is cleared"
        ))
    }
}

/// Trust as of the last applied change, with the description of a loss.
pub(crate) type AppliedTrust = flash_indexer_wire::AppliedTrust<String>;

/// Trust in a rank whose stream misses `pending` after the last applied message.
pub(crate) fn with_pending(last: &AppliedTrust, pending: Option<PendingReason>) -> RankTrust {
    match last.with_pending(pending) {
        TrustBasis::Cold => RankTrust::COLD,
        TrustBasis::Exact => RankTrust::EXACT,
        TrustBasis::Recovering(pending) => RankTrust { state: TrustState::Recovering, why: Some(pending.to_string()) },
        TrustBasis::Degraded(pending) => RankTrust::degraded(pending.to_string()),
        TrustBasis::Lost(why) => RankTrust::degraded(why.clone()),
    }
}

/// Trust state of a rank as of its last change, which queries read without a lock.
///
/// Relaxed: a query that overlaps with a change may see the state before or after it, as it may see the blocks.
#[derive(Debug)]
pub(crate) struct PublishedTrust(AtomicU8);

/// Set while the rank may hold blocks that wait for a parent. The index has their number.
const HAS_WAITING: u8 = 1 << 7;

impl PublishedTrust {
    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(TrustState::Cold as u8))
    }

    pub(crate) fn set(&self, state: TrustState, has_waiting: bool) {
        let waiting = if has_waiting { HAS_WAITING } else { 0 };
        self.0.store(state as u8 | waiting, Ordering::Relaxed);
    }

    /// The state, ignoring blocks that wait for a parent.
    pub(crate) fn state(&self) -> TrustState {
        TrustState::ALL[usize::from(self.0.load(Ordering::Relaxed) & !HAS_WAITING)]
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.0.load(Ordering::Relaxed) & HAS_WAITING != 0
    }
}
