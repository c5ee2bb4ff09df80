//! Mutable state of a listener, behind one lock.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

use flash_indexer_core::DpRank;
use flash_indexer_types::logs::Repeats;
use flash_indexer_types::{ConnectionStatus, Ordinal, Trust};
use flash_indexer_wire::PendingReason;
use parking_lot::{Mutex, MutexGuard};

use super::report::ReplayProgress;
use super::trust::{LossPosition, PackedTrust, TrustLedger};

/// The status of a listener. Queries read the trust in its ranks without the lock.
///
/// # Consistency
///
/// The trust is published when the lock is released. A query that starts after a loss was recorded never gets the trust
/// from before it.
#[derive(Debug)]
pub(super) struct SharedStatus {
    status: Mutex<Status>,
    /// The [`PackedTrust`] of the ledger.
    trust: AtomicU64,
}

/// Access to the status. It publishes the trust if it was used to change the status.
pub(super) struct StatusGuard<'a> {
    status: MutexGuard<'a, Status>,
    published: &'a AtomicU64,
    is_changed: bool,
}

impl SharedStatus {
    pub(super) fn new(status: Status) -> Self {
        let trust = AtomicU64::new(status.trust.of_first_ranks().0);
        Self { status: Mutex::new(status), trust }
    }

    pub(super) fn lock(&self) -> StatusGuard<'_> {
        StatusGuard { status: self.status.lock(), published: &self.trust, is_changed: false }
    }

    /// Trust state of a rank. Takes the lock for ranks beyond those of [`PackedTrust`].
    pub(super) fn trust(&self, dp_rank: DpRank) -> Trust {
        let published = PackedTrust(self.trust.load(Acquire)).get(dp_rank);
        published.unwrap_or_else(|| self.lock().trust.rank_trust(dp_rank).0)
    }
}

impl Deref for StatusGuard<'_> {
    type Target = Status;
    fn deref(&self) -> &Status {
        &self.status
    }
}

impl DerefMut for StatusGuard<'_> {
    fn deref_mut(&mut self) -> &mut Status {
        self.is_changed = true;
        &mut self.status
    }
}

impl Drop for StatusGuard<'_> {
    fn drop(&mut self) {
        if self.is_changed {
            // Before the lock is released, so that states are published in their order.
            self.published.store(self.status.trust.of_first_ranks().0, Release);
        }
    }
}

/// Connection, trust and counters of one listener.
#[derive(Debug)]
pub(super) struct Status {
    pub(super) connection: ConnectionStatus,
    pub(super) connects: Repeats,
    pub(super) disconnects: Repeats,
    pub(super) trust: TrustLedger,
    pub(super) last_sequence: Option<u64>,
    pub(super) last_message: Option<Instant>,
    pub(super) gaps: u64,
    pub(super) rejected: BTreeMap<&'static str, u64>,
    pub(super) last_error: Option<String>,
    /// Why the engine is not connected, after a failed attempt.
    pub(super) failed_connect: Option<String>,
}

impl Status {
    pub(super) fn new(never_exact: Option<&'static str>) -> Self {
        Self {
            connection: ConnectionStatus::Connecting,
            connects: Repeats::default(),
            disconnects: Repeats::default(),
            trust: TrustLedger::new(never_exact),
            last_sequence: None,
            last_message: None,
            gaps: 0,
            rejected: BTreeMap::new(),
            last_error: None,
            failed_connect: None,
        }
    }

    /// Last error of a rank: the reason why it is not exact, or else the stream's last error, or why it is not connected. None if exact.
    pub(super) fn last_error(&self, dp_rank: DpRank) -> Option<String> {
        match self.trust.rank_trust(dp_rank) {
            (Trust::Exact, _) => None,
            (_, Some(missing)) => Some(missing.to_string()),
            (_, None) => self.failed_connect.as_ref().or(self.last_error.as_ref()).cloned(),
        }
    }

    /// Last error of a rank of an engine that is pulled or streams over gRPC: the reason why it is not exact, with the stream's
    /// last error, which has the cause.
    pub(super) fn last_pull_error(&self, dp_rank: DpRank) -> Option<String> {
        let missing = self.last_error(dp_rank)?;
        Some(match &self.last_error {
            Some(cause) if *cause != missing => format!("{missing}; {cause}"),
            _ => missing,
        })
    }

    /// Position of a loss that is recorded now. `last_event` is the last event of the model's history.
    pub(super) fn position(&self, last_event: Ordinal) -> LossPosition {
        LossPosition { after: self.last_sequence, since: last_event }
    }

    /// Progress of the running replay, if there is one.
    pub(super) fn progress(&self) -> Option<ReplayProgress> {
        let Some(PendingReason::Recovering { end }) = self.trust.pending() else { return None };
        let applied = self.last_sequence.map_or(0, |last| last.saturating_add(1));
        Some(ReplayProgress { applied, published: end.filter(|&end| end >= applied) })
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_wire::{DegradedReason, StreamTrust};

    use super::*;
    use crate::listener::trust::NoticeKind;

    const RANKS: u32 = 40;

    fn notice(number: u64) -> NoticeKind {
        if (number / 20).is_multiple_of(2) { NoticeKind::Dropped } else { NoticeKind::Disconnected }
    }

    /// Changes of the trust of a stream, one for each number.
    fn change(status: &mut Status, number: u64) {
        let position = status.position(0);
        let dp_rank = DpRank((number / 16) as u32 % RANKS);
        let trust = &mut status.trust;
        match number % 20 {
            0 => trust.set_all(StreamTrust::Exact, position),
            1 => trust.set_all(StreamTrust::Cold, position),
            2 => trust.set_all(StreamTrust::Degraded(DegradedReason::Unverified), position),
            3 => trust.set_pending(Some(PendingReason::Recovering { end: None })),
            4 => trust.set_pending(Some(PendingReason::TailLost)),
            5..=7 => trust.set_pending(None),
            8 => trust.record_loss(Some(dp_rank), "lost".to_owned(), position),
            9 => trust.record_loss(None, "lost".to_owned(), position),
            10 => drop(trust.set_waiting(dp_rank, 3, position)),
            11 => drop(trust.set_waiting(dp_rank, 0, position)),
            12 => drop(trust.send_notice(notice(number))),
            13 => {
                let last = trust.send_notice(notice(number));
                trust.receive_notice(notice(number), last);
                let received = trust.last_notice(notice(number));
                trust.acknowledge_notices(notice(number), received);
            }
            15 => trust.record_rank_conflict(dp_rank, number / 7 % 2),
            16 => trust.end_rank_conflicts(|contested, stream| contested == dp_rank || stream == number / 7 % 2),
            17 => trust.record_rank_move(dp_rank, number / 7 % 2),
            18 => trust.record_removal_after_move(dp_rank, number / 7 % 2, position),
            14 => trust.record_loss_of_unlisted(vec![dp_rank, DpRank(3)], "refused".to_owned(), position),
            _ => trust.cleared(dp_rank),
        }
    }

    #[test]
    fn the_trust_without_the_lock_is_the_one_of_the_ledger_after_every_change() {
        for ceiling in [None, Some("extra keys")] {
            let status = SharedStatus::new(Status::new(ceiling));
            let mut number: u64 = 7;
            for _ in 0..5_000 {
                for dp_rank in (0..RANKS).map(DpRank) {
                    let of_ledger = status.lock().trust.rank_trust(dp_rank).0;
                    assert_eq!(status.trust(dp_rank), of_ledger, "rank {dp_rank}");
                }
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                change(&mut status.lock(), number >> 33);
            }
        }
    }

    #[test]
    fn a_rank_is_not_exact_as_soon_as_a_drop_is_recorded() {
        let status = SharedStatus::new(Status::new(None));
        status.lock().trust.set_pending(None);
        let position = status.lock().position(0);
        status.lock().trust.set_all(StreamTrust::Exact, position);
        assert_eq!(status.trust(DpRank(0)), Trust::Exact);
        let mut guard = status.lock();
        guard.trust.send_notice(NoticeKind::Dropped);
        drop(guard);
        assert_eq!(status.trust(DpRank(0)), Trust::Degraded);
    }
}
