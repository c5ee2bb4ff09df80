//! What waits between two threads, counted.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::metrics::QueueState;

/// What waits in a queue. Relaxed throughout: the figures bound memory, nothing is read through them.
#[derive(Default)]
pub(crate) struct Queued {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

impl Queued {
    /// Counts messages in, unless there is no room for them.
    pub(super) fn add(&self, messages: usize, bytes: usize, messages_max: usize, bytes_max: usize) -> bool {
        let fits = self.messages.load(Relaxed).saturating_add(messages) <= messages_max
            && self.bytes.load(Relaxed).saturating_add(bytes) <= bytes_max;
        if fits {
            self.messages.fetch_add(messages, Relaxed);
            self.bytes.fetch_add(bytes, Relaxed);
        }
        fits
    }

    /// What waits now.
    pub(super) fn state(&self) -> QueueState {
        QueueState { messages: self.messages.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }

    /// Counts messages out.
    pub(super) fn take(&self, messages: usize, bytes: usize) {
        self.messages.fetch_sub(messages, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}
