//! Cooperative yielding of the publisher to other tasks of the runtime.

use super::STEP_PREFIXES_MAX;

/// Counter of the prefixes processed since the last yield.
#[derive(Debug, Default)]
pub(super) struct YieldBudget {
    done: usize,
    /// Largest number of prefixes without a yield.
    pub(super) largest: usize,
}

impl YieldBudget {
    /// Counts processed prefixes, and yields after each full step.
    pub(super) async fn spend(&mut self, prefixes: usize) {
        self.done += prefixes;
        self.largest = self.largest.max(self.done);
        if self.done >= STEP_PREFIXES_MAX {
            self.done = 0;
            tokio::task::yield_now().await;
        }
    }
}
