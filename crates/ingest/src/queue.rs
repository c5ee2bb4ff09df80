//! What waits between two threads, counted.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use flash_indexer_telemetry::metrics::QueueState;

/// What waits in a queue. Relaxed throughout: the figures bound memory, nothing is read through them.
#[derive(Default)]
pub(crate) struct Queued {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    /// Whether a notice of dropped messages is the last thing that was queued.
    is_dropping: AtomicBool,
}

impl Queued {
    /// Counts messages in, unless there is no room for their bytes.
    pub(super) fn add(&self, messages: usize, bytes: usize, bytes_max: usize) -> bool {
        let fits = self.bytes.load(Relaxed).saturating_add(bytes) <= bytes_max;
        if fits {
            self.messages.fetch_add(messages, Relaxed);
            self.bytes.fetch_add(bytes, Relaxed);
        }
        fits
    }

    /// Messages are dropped: whether a notice of it is to be queued. Only the first of a run of drops needs one.
    pub(super) fn begins_dropping(&self) -> bool {
        !self.is_dropping.swap(true, AcqRel)
    }

    /// A message was queued after the notice, or the notice is about to be taken: further drops need another one.
    /// ReleaseOutcome before what the decoder concludes from the notice.
    pub(super) fn end_dropping(&self) {
        if self.is_dropping.load(Relaxed) {
            self.is_dropping.store(false, Release);
        }
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
