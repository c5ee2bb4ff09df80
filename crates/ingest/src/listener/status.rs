//! Mutable state of a listener, behind one lock.

use std::collections::BTreeMap;
use std::time::Instant;

use flash_indexer_core::DpRank;
use flash_indexer_types::logs::Repeats;
use flash_indexer_types::{Ordinal, Trust};
use flash_indexer_wire::Pending;

use super::report::{Connection, ReplayProgress};
use super::trust::{LossPosition, TrustLedger};

/// Connection, trust and counters of one listener.
#[derive(Debug)]
pub(super) struct Status {
    pub(super) connection: Connection,
    pub(super) connects: Repeats,
    pub(super) disconnects: Repeats,
    pub(super) trust: TrustLedger,
    pub(super) last_sequence: Option<u64>,
    pub(super) last_message: Option<Instant>,
    pub(super) gaps: u64,
    pub(super) rejected: BTreeMap<&'static str, u64>,
    pub(super) last_error: Option<String>,
}

impl Status {
    pub(super) fn new(never_exact: Option<&'static str>) -> Self {
        Self {
            connection: Connection::Connecting,
            connects: Repeats::default(),
            disconnects: Repeats::default(),
            trust: TrustLedger::new(never_exact),
            last_sequence: None,
            last_message: None,
            gaps: 0,
            rejected: BTreeMap::new(),
            last_error: None,
        }
    }

    /// What a rank that is not exact is missing, or else the stream's last error.
    pub(super) fn last_error(&self, dp_rank: DpRank) -> Option<String> {
        match self.trust.rank_trust(dp_rank) {
            (Trust::Exact, _) => None,
            (_, Some(missing)) => Some(missing.to_string()),
            (_, None) => self.last_error.clone(),
        }
    }

    /// Position of a loss that is recorded now. `last_event` is the last event of the model's history.
    pub(super) fn position(&self, last_event: Ordinal) -> LossPosition {
        LossPosition { after: self.last_sequence, since: last_event }
    }

    /// Progress of the running replay, if there is one.
    pub(super) fn progress(&self) -> Option<ReplayProgress> {
        match self.trust.pending() {
            Some(Pending::Recovering { end }) => {
                let applied = self.last_sequence.map_or(0, |last| last.saturating_add(1));
                Some(ReplayProgress { applied, published: end.filter(|&end| end >= applied) })
            }
            _ => None,
        }
    }
}
