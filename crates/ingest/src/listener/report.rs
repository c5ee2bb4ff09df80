//! Reports of a listener's state.

use std::collections::BTreeMap;
use std::fmt;

use flash_indexer_core::DpRank;
use flash_indexer_types::{ConnectionStatus, ListenerOptions, Trust};
use flash_indexer_wire::{PendingReason, plural};

use super::Listener;
use super::activity::RankActivity;

/// Progress of a running replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Applied messages of this epoch.
    pub applied: u64,
    /// Messages that the engine has published in this epoch, as its live messages show.
    pub published: Option<u64>,
}

impl fmt::Display for ReplayProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.published {
            Some(published) => {
                write!(f, "{} of {published} {}", self.applied, plural(published, "message", "messages"))
            }
            None => write!(f, "{} {}", self.applied, plural(self.applied, "message", "messages")),
        }
    }
}

/// A listener that has not caught up with its engine yet.
pub struct ReplayBacklog {
    /// Progress of the replay, if it has begun.
    pub replay: Option<ReplayProgress>,
}

/// A listener's state at one moment.
#[derive(Debug, Clone)]
pub struct ListenerReport {
    /// The discovery source that owns the registration; none for a manual one.
    pub source: Option<String>,
    /// Options that the listener is registered with.
    pub options: ListenerOptions,
    /// State of the connection.
    pub status: ConnectionStatus,
    /// Sequence number of the last applied message.
    pub last_seq: Option<u64>,
    /// Milliseconds since it was applied.
    pub last_event_ms_ago: Option<u64>,
    /// Sequence number of the last live message that was received. A rank that lags has applied an earlier one.
    pub received_seq: Option<u64>,
    /// Events of the rank, and the blocks that they changed.
    pub activity: RankActivity,
    /// Gaps in the stream so far.
    pub gaps: u64,
    /// Trust state of the rank.
    pub trust: Trust,
    /// Progress of a running replay; absent while none runs.
    pub replay: Option<ReplayProgress>,
    /// Whether the rank holds more blocks than its bounded index keeps; absent if not.
    pub partial: bool,
    /// Rejected messages and events, by reason.
    pub rejected: BTreeMap<&'static str, u64>,
    /// Reason why the rank is not exact, or else the last error; none while the rank is exact.
    pub last_error: Option<String>,
}

impl Listener {
    /// State of the listener, with the trust state of `dp_rank`.
    pub fn report(&self, dp_rank: DpRank) -> ListenerReport {
        let status = self.state.status.lock();
        // Under one lock with the rest: a report that shows a message as applied also shows the doubt that the message raised.
        let trust = self.trust_of_engine(status.trust.rank_trust(dp_rank).0);
        let elapsed = status.last_message.map(|at| at.elapsed().as_millis());
        ListenerReport {
            source: None,
            options: self.options.clone(),
            status: status.connection,
            last_seq: status.last_sequence,
            received_seq: self.state.activity.last_received(),
            last_event_ms_ago: elapsed.map(|elapsed| u64::try_from(elapsed).unwrap_or(u64::MAX)),
            activity: self.state.activity.of(self.dp_rank, dp_rank),
            gaps: status.gaps,
            trust,
            replay: status.progress(),
            partial: self.model.is_partial(self.rank(dp_rank)),
            rejected: status.rejected.clone(),
            last_error: match self.options.is_pulled() || self.options.is_streamed() {
                true => status.last_pull_error(dp_rank),
                false => status.last_error(dp_rank),
            },
        }
    }

    /// Progress of the listener's first contact with its engine; none once it has caught up.
    pub fn catching_up(&self) -> Option<ReplayBacklog> {
        let status = self.state.status.lock();
        match status.trust.pending() {
            Some(PendingReason::FirstContact) => Some(ReplayBacklog { replay: None }),
            Some(PendingReason::Recovering { .. }) => Some(ReplayBacklog { replay: status.progress() }),
            Some(PendingReason::TailLost | PendingReason::Unverified) | None => None,
        }
    }
}
