//! Counters of elementary steps, for tests that bound the cost of an operation without measuring time.

/// A kind of elementary step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// A line of the edge table that a search reads.
    EdgeLine,
    /// A line of the edge table that is copied to a larger table.
    CopiedEdgeLine,
    /// A line of a directory that a search reads.
    DirectoryLine,
    /// A run of a branch that a query compares.
    BranchRun,
    /// A holder of a branch's run that a query visits.
    BranchHolder,
    /// An interval of an exception that a change moves or reads.
    Interval,
    /// A run that is visited to find the descendants of a redefined sequence hash.
    MovedRun,
}

/// Counts steps of this thread. Does nothing outside tests.
#[inline(always)]
pub(super) fn spend(effort: Effort, steps: usize) {
    #[cfg(test)]
    counted::SPENT.with_borrow_mut(|spent| spent[effort as usize] += steps);
    #[cfg(not(test))]
    let _ = (effort, steps);
}

/// Steps of one kind that `work` takes on this thread.
#[cfg(test)]
pub(super) fn of(effort: Effort, work: impl FnOnce()) -> usize {
    let spent = || counted::SPENT.with_borrow(|spent| spent[effort as usize]);
    let before = spent();
    work();
    spent() - before
}

#[cfg(test)]
mod counted {
    use std::cell::RefCell;

    thread_local! {
        pub(super) static SPENT: RefCell<[usize; 8]> = const { RefCell::new([0; 8]) };
    }
}
