//! The rules by which a rank of a stream is exact.

use super::action::{PendingReason, StreamTrust};

/// Trust in a rank as of its last applied change. `L` describes a loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppliedTrust<L> {
    /// Nothing was received.
    Cold,
    /// Every change since a known empty cache was applied.
    Exact,
    /// Changes were lost that no replay can return.
    Lost(L),
}

/// Trust state of a rank, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustBasis<'a, L> {
    /// Nothing was received.
    Cold,
    /// Nothing is known to be missing.
    Exact,
    /// Messages are being replayed.
    Recovering(PendingReason),
    /// Messages are missing that may still arrive.
    Degraded(PendingReason),
    /// Changes were lost.
    Lost(&'a L),
}

impl<L> AppliedTrust<L> {
    /// Trust in the ranks of a stream, with a description of its loss.
    pub fn of(trust: StreamTrust, describe: impl FnOnce(String) -> L) -> Self {
        match trust {
            StreamTrust::Cold => Self::Cold,
            StreamTrust::Exact => Self::Exact,
            StreamTrust::Degraded(why) => Self::Lost(describe(why.to_string())),
        }
    }

    /// Trust state of a rank, given the reason why messages after the last applied one are missing.
    pub const fn with_pending(&self, pending: Option<PendingReason>) -> TrustBasis<'_, L> {
        match (self, pending) {
            (Self::Lost(loss), _) => TrustBasis::Lost(loss),
            (_, Some(pending @ PendingReason::Recovering { .. })) => TrustBasis::Recovering(pending),
            (_, Some(pending @ PendingReason::TailLost)) => TrustBasis::Degraded(pending),
            (Self::Cold, _) => TrustBasis::Cold,
            // Restored state is not exact either, until the engine has shown that it is still the same one.
            (Self::Exact, Some(pending @ (PendingReason::Unverified | PendingReason::FirstContact))) => {
                TrustBasis::Degraded(pending)
            }
            (Self::Exact, None) => TrustBasis::Exact,
        }
    }
}
