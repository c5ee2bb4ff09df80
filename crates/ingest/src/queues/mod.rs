//! Counters of a queue between two threads.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use flash_indexer_telemetry::metrics::QueueState;

/// Messages and bytes in a queue. The counters are relaxed: they bound memory, and no other data is read through them.
#[derive(Default)]
pub(crate) struct Queued {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    /// Whether a notice of dropped messages is the last thing that was queued.
    is_dropping: AtomicBool,
}

impl Queued {
    /// Adds messages unless their bytes exceed the limit. Returns whether they fit.
    pub(super) fn add(&self, messages: usize, bytes: usize, bytes_max: usize) -> bool {
        let fits = self.bytes.load(Relaxed).saturating_add(bytes) <= bytes_max;
        if fits {
            self.messages.fetch_add(messages, Relaxed);
            self.bytes.fetch_add(bytes, Relaxed);
        }
        fits
    }

    /// Begins a run of drops. Returns whether a notice has to be queued: only the first drop of a run needs one.
    pub(super) fn begins_dropping(&self) -> bool {
        !self.is_dropping.swap(true, AcqRel)
    }

    /// Ends a run of drops: a message was queued after the notice, or the notice is about to be handled. Further drops need
    /// another notice. Call it before the notice is handled, so that no later drop goes unnoticed.
    pub(super) fn end_dropping(&self) {
        if self.is_dropping.load(Relaxed) {
            self.is_dropping.store(false, Release);
        }
    }

    /// Current depth.
    pub(super) fn state(&self) -> QueueState {
        QueueState { messages: self.messages.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }

    /// Removes messages.
    pub(super) fn take(&self, messages: usize, bytes: usize) {
        self.messages.fetch_sub(messages, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}
