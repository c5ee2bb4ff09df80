//! Samples of the runs that queries match, for the eviction policy.
//!
//! A reader overwrites a pseudo-random slot with the deepest run of its path, and the writer drains the slots from
//! time to time. Readers never block each other, and the slots share no cache line with what readers read.

use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::published::layout::RunId;

const SLOTS: usize = 1_024;

/// Recently matched runs; zero is none.
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

    /// Any memory order suffices: a lost use, or one counted for another run, only makes the estimate slightly worse.
    pub(super) fn record(&self, run: RunId) {
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
