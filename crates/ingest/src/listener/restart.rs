//! Restart of a stream whose state is lost.

use std::sync::atomic::Ordering::{Acquire, Release};

use super::Listener;

impl Listener {
    /// Marks the stream's state as lost. Until the decoder restarts the stream, no rank of it is exact and its queued
    /// changes are discarded. Returns false if the state was lost already.
    pub fn require_restart(&self, why: &str) -> bool {
        let is_new = !self.state.needs_restart.swap(true, Release);
        self.record_loss(None, why.to_owned());
        is_new
    }

    /// Marks the stream as restarted: later changes are applied.
    pub(crate) fn finish_restart(&self) {
        self.state.needs_restart.store(false, Release);
    }

    /// Whether the state is lost and the stream has not restarted yet.
    pub fn needs_restart(&self) -> bool {
        self.state.needs_restart.load(Acquire)
    }
}
