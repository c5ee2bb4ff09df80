//! Counts of elementary steps, for tests that bound the cost of an operation without measuring time.

/// A kind of elementary step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// A line of the table of edges that a search looks at.
    EdgeLine,
    /// A line of the table of edges that is copied to a larger one.
    CopiedEdgeLine,
    /// A line of a directory that a search looks at.
    DirectoryLine,
    /// A run of a branch that a query compares.
    BranchRun,
    /// A holder of a run of a branch that a query looks at.
    BranchHolder,
    /// An interval of an exception that a change moves or looks at.
    Interval,
    /// A run that is looked at for what follows a name that moves.
    MovedRun,
}

/// Counts steps of this thread. Does nothing outside of tests.
#[inline(always)]
pub(super) fn spend(effort: Effort, steps: usize) {
    #[cfg(test)]
    counted::SPENT.with_borrow_mut(|spent| spent[effort as usize] += steps);
    #[cfg(not(test))]
    let _ = (effort, steps);
}

/// Steps of one kind that this thread takes for some work.
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
