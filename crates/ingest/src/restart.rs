//! A stream whose state is lost: from then until the decoder has it start over.

use std::sync::atomic::Ordering::{Acquire, Release};

use super::listener::Listener;

impl Listener {
    /// What is known of the stream is lost. Until its decoder has it start over, no rank of it is exact and its queued
    /// changes are discarded. False if that was so already.
    pub fn require_restart(&self, why: &str) -> bool {
        let is_new = !self.state.needs_restart.swap(true, Release);
        self.record_loss(None, why.to_owned());
        is_new
    }

    /// Changes from now on are those of a stream that has started over.
    pub(super) fn finish_restart(&self) {
        self.state.needs_restart.store(false, Release);
    }

    /// Whether it still has to start over.
    pub fn needs_restart(&self) -> bool {
        self.state.needs_restart.load(Acquire)
    }
}

impl std::fmt::Display for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "instance {} rank {} of {}", self.instance, self.dp_rank, self.model.key())
    }
}
