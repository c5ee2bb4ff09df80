//! Elementary steps of the writer, and how many an event may take.
//!
//! A step is a run, a child, a line of names, a domain, a rank or an entry of a list that the writer looks at: about one
//! line from memory. Holders of a run lie side by side, 16 to a line, and count as that. Only tests count; elsewhere
//! counting is nothing.

#[cfg(test)]
use std::cell::Cell;

/// Holders of a run that lie in one line of memory.
const LINE_HOLDERS: usize = 16;

/// Steps taken so far.
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

    /// Counts a look at holders that lie side by side.
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
