//! Timing of calls that take no longer than reading the clock.

use std::time::{Duration, Instant};

/// Times single calls, without the cost of reading the clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Nanoseconds that are subtracted from each timing.
    pub(crate) overhead_ns: u64,
}

impl Clock {
    /// Measures the cost of reading the clock: the median of many consecutive readings. Takes a millisecond.
    #[must_use]
    pub fn calibrated() -> Self {
        let mut readings: Vec<u64> = (0..READINGS).map(|_| ns(Instant::now().elapsed())).collect();
        readings.sort_unstable();
        Self { overhead_ns: readings[READINGS / 2] }
    }

    /// Time of `work`, in nanoseconds.
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
