//! Work of the publisher in steps, so that other tasks of the runtime take turns with it.

use super::STEP_PREFIXES_MAX;

/// Counts prefixes since the last turn of others.
#[derive(Debug, Default)]
pub(super) struct Pace {
    done: usize,
    largest: usize,
}

impl Pace {
    /// Notes work that was done, and lets others take a turn once there is a step of it.
    pub(super) async fn spend(&mut self, prefixes: usize) {
        self.done += prefixes;
        self.largest = self.largest.max(self.done);
        if self.done >= STEP_PREFIXES_MAX {
            self.done = 0;
            tokio::task::yield_now().await;
        }
    }

    /// Most prefixes without a turn of others.
    pub(super) fn largest(&self) -> usize {
        self.largest
    }
}
