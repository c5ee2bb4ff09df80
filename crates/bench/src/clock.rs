//! Timing of things that take no longer than reading the clock.

use std::time::{Duration, Instant};

/// Times single calls, and takes off what reading the clock twice costs.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    overhead_ns: u64,
}

impl Clock {
    /// Measures what reading the clock costs: the median of many readings in a row. Takes a millisecond.
    #[must_use]
    pub fn calibrated() -> Self {
        let mut readings: Vec<u64> = (0..READINGS).map(|_| ns(Instant::now().elapsed())).collect();
        readings.sort_unstable();
        Self { overhead_ns: readings[READINGS / 2] }
    }

    /// Nanoseconds that are taken off each timing.
    #[must_use]
    pub fn overhead_ns(self) -> u64 {
        self.overhead_ns
    }

    /// How long `work` takes, in nanoseconds.
    pub fn time(self, work: impl FnOnce()) -> u64 {
        let start = Instant::now();
        work();
        ns(start.elapsed()).saturating_sub(self.overhead_ns)
    }
}

const READINGS: usize = 10_001;

fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
