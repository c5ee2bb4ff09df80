//! Counter of the writer's elementary steps, for tests that limit the steps of an event.
//!
//! A step is a visit of a run, child, column line, domain, rank or list entry: about one cache line from memory.
//! Holders of a run are stored side by side, 16 to a line, and count as one step. Only tests count; in other builds counting
//! compiles to nothing.

#[cfg(test)]
use std::cell::Cell;

/// Holders of a run in one cache line.
const LINE_HOLDERS: usize = 16;

/// Steps so far.
#[derive(Debug, Default, Clone)]
pub(in crate::run) struct Steps {
    #[cfg(test)]
    taken: Cell<u64>,
}

impl Steps {
    /// Counts steps.
    #[inline(always)]
    #[cfg_attr(not(test), allow(clippy::unused_self, reason = "only tests count"))]
    pub(super) fn take(&self, _steps: usize) {
        #[cfg(test)]
        self.taken.set(self.taken.get() + _steps as u64);
    }

    /// Counts visits of holders that are stored side by side.
    #[inline(always)]
    pub(super) fn take_holders(&self, holders: usize) {
        self.take(holders.div_ceil(LINE_HOLDERS));
    }

    /// All steps so far.
    #[cfg(test)]
    pub(in crate::run) fn taken(&self) -> u64 {
        self.taken.get()
    }
}
