//! Last repair of a stream that lost messages: its whole history, applied to a cleared state.

use std::time::Instant;

use super::action::{Action, ClearReason, DegradedReason, ReplayOutcome};
use super::repair::Repair;
use super::{EpochCheck, Stream};

/// Whether the whole history of a stream is to be requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum History {
    /// No repair was abandoned in this epoch, or skipped in a pause, since the state was last rebuilt.
    Unneeded,
    /// A repair was abandoned or skipped. The history is requested at this time if messages are still lost.
    RequestedAt(Instant),
    /// The publisher's replay buffer no longer has the first message of this epoch.
    Gone,
}

impl<P: AsRef<[u8]>> Stream<P> {
    /// Time of the next request for the whole history, if messages are lost that it may return.
    pub(super) fn history_due_at(&self) -> Option<Instant> {
        let is_inexact = self.loss.is_some() || self.has_inexact_rank;
        match self.history {
            History::RequestedAt(at) if is_inexact && self.epoch_check == EpochCheck::Verified => Some(at),
            _ => None,
        }
    }

    /// Plans a request for the whole history after a pause: the state of a rank lacks changes, although the stream
    /// delivered every later message.
    pub fn record_inexact_rank(&mut self, now: Instant) {
        self.has_inexact_rank = true;
        self.plan_history(now);
    }

    /// Plans a request for the whole history after a pause, if messages are still lost at that time.
    pub(super) fn plan_history(&mut self, now: Instant) {
        if self.history != History::Gone {
            self.history = History::RequestedAt(now + self.options.limits.repair_pause);
        }
    }

    /// Requests the whole history. Until its first message arrives, the stream keeps its state and delivers live messages.
    pub(super) fn request_history(&mut self, now: Instant) {
        self.plan_history(now);
        self.start(Repair::of_history(now), now);
    }

    /// Handles the first message of a reply to a request for the whole history. Returns whether the state is built from it
    /// and the messages after it.
    pub(super) fn begin_history(&mut self, sequence: u64, now: Instant) -> bool {
        if sequence > 0 {
            self.history = History::Gone;
            if self.cursor.is_none() {
                return true;
            }
            self.end_repair(ReplayOutcome::Truncated);
            self.advance(now);
            return false;
        }
        if self.cursor.is_some() || self.has_live {
            self.record_cleared();
        }
        self.cursor = None;
        self.delivered.clear();
        self.begin_at(0);
        true
    }

    /// Begins a stream without a delivered message with the first one of a reply, even if messages up to a later one count as lost.
    pub(super) fn begin_at(&mut self, first: u64) {
        self.next = first;
        if first > 0 {
            return self.raise(DegradedReason::StartUnknown { missed: first });
        }
        (self.history, self.has_inexact_rank) = (History::Unneeded, false);
        self.loss = None;
        // Also clears ranks whose imported state lacks changes, if no message was delivered.
        self.actions.push_back(Action::Clear(ClearReason::Replayed));
        self.announce_trust();
    }

    /// Ends a request for the whole history that no message has answered.
    pub(super) fn fail_history(&mut self, now: Instant) {
        self.end_repair(ReplayOutcome::GivenUp);
        self.advance(now);
    }
}
