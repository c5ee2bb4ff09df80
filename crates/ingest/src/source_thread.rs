//! Common parts of sources with a thread for each listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Keeps a thread from delivering to a closed listener.
#[derive(Debug, Default)]
pub struct DeliveryGate {
    is_closed: Mutex<bool>,
}

impl DeliveryGate {
    /// Closes the gate, then runs `last` before any other delivery could follow.
    pub fn close(&self, last: impl FnOnce()) {
        let mut is_closed = self.is_closed.lock();
        *is_closed = true;
        last();
    }

    /// Runs `deliver` unless the gate is closed.
    pub fn pass(&self, deliver: impl FnOnce()) {
        let is_closed = self.is_closed.lock();
        if !*is_closed {
            deliver();
        }
    }
}

/// A running thread, counted until it ends.
#[derive(Debug)]
pub struct RunningThread(Arc<AtomicUsize>);

impl RunningThread {
    /// None if `max` threads run.
    #[must_use]
    pub fn begin(running: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let below = |count| (count < max).then_some(count + 1);
        running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).ok()?;
        Some(Self(Arc::clone(running)))
    }
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
