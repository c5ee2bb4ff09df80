//! What queries have found, for a writer that forgets what is of least use.
//!
//! A sample: a reader writes the deepest run of its way over what lay in some slot, and the writer takes out
//! what it finds now and then. Readers do not wait for each other, and what they write shares no cache line
//! with what they read.

use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::published::layout::RunId;

const SLOTS: usize = 1_024;

/// Runs that were found lately; zero is none.
#[derive(Debug)]
pub(super) struct UseSamples {
    slots: Box<[AtomicU32]>,
}

thread_local! {
    static NEXT: Cell<u32> = const { Cell::new(0) };
}

impl UseSamples {
    pub(super) const BYTES: usize = SLOTS * size_of::<AtomicU32>();

    pub(super) fn new() -> Self {
        Self { slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Any order will do: a use that is lost or counted for another run makes a guess a little worse.
    pub(super) fn note(&self, run: RunId) {
        let next = NEXT.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        NEXT.set(next);
        self.slots[next as usize >> 8 & (SLOTS - 1)].store(run.0, Relaxed);
    }

    pub(super) fn take(&self, mut each: impl FnMut(RunId)) {
        for slot in &self.slots {
            if slot.load(Relaxed) != 0 {
                each(RunId(slot.swap(0, Relaxed)));
            }
        }
    }
}
