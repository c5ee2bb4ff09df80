//! Restart of a stream whose state is lost.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use flash_indexer_types::LossReason;
use flash_indexer_wire::ReplaySupport;

use super::Listener;

impl Listener {
    /// Marks the stream's state as lost. Until the decoder restarts the stream, no rank of it is exact and its queued
    /// changes are discarded. Returns false if the state was lost already.
    pub fn require_restart(&self, why: LossReason) -> bool {
        let is_new = !self.state.needs_restart.swap(true, Release);
        self.record_loss(None, why.to_string());
        is_new
    }

    /// Whether the restarted stream requests replays. Once it was restarted without them, because one of its messages made
    /// a thread panic, every later restart is without them too: a replay would return the message.
    pub(crate) fn replay_after_restart(&self, replay: ReplaySupport) -> ReplaySupport {
        let is_harmful = self.state.is_replay_harmful.fetch_or(replay == ReplaySupport::Unavailable, AcqRel);
        if is_harmful { ReplaySupport::Unavailable } else { replay }
    }

    /// Marks the stream as restarted: later changes are applied.
    pub(crate) fn finish_restart(&self) {
        let mut status = self.state.status.lock();
        status.trust.restarted();
        // Its blocks are removed with the changes that follow.
        (status.last_sequence, status.last_message) = (None, None);
        drop(status);
        self.state.needs_restart.store(false, Release);
    }

    /// Whether ranks of the stream wait for their state to be restored.
    pub(crate) fn is_held(&self) -> bool {
        match self.model.ranks_of(self).as_slice() {
            // Not registered yet: it is about to replace a registered one.
            [] => self.hold().holds_any(),
            ranks => ranks.iter().any(|&dp_rank| self.hold().holds(dp_rank)),
        }
    }

    /// Whether the state is lost and the stream has not restarted yet.
    pub fn needs_restart(&self) -> bool {
        self.state.needs_restart.load(Acquire)
    }
}
