//! Detection of threads that make no progress while they have work.

use std::time::{Duration, Instant};

/// Time without progress, while work is queued, after which a thread fails readiness.
const STALL_MAX: Duration = Duration::from_secs(5);

/// Progress of one thread, as samples show it.
#[derive(Debug)]
pub(super) struct Liveness {
    /// Steps at the last sample.
    steps: u64,
    /// Time of the last sample at which the thread had made progress, or had no work.
    progress_at: Instant,
    /// Whether the current stall was reported.
    is_reported: bool,
}

impl Liveness {
    pub(super) fn new(now: Instant) -> Self {
        Self { steps: 0, progress_at: now, is_reported: false }
    }

    /// Adds a sample. Returns true once for each stall.
    pub(super) fn sample(&mut self, steps: u64, has_work: bool, now: Instant) -> bool {
        if steps != self.steps || !has_work {
            (self.steps, self.progress_at, self.is_reported) = (steps, now, false);
            return false;
        }
        let is_new = !self.is_reported && self.stall(steps, has_work, now).is_some();
        self.is_reported |= is_new;
        is_new
    }

    /// Time since the last progress, if it exceeds [`STALL_MAX`].
    pub(super) fn stall(&self, steps: u64, has_work: bool, now: Instant) -> Option<Duration> {
        let stalled = now.saturating_duration_since(self.progress_at);
        (has_work && steps == self.steps && stalled >= STALL_MAX).then_some(stalled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_only_with_work_and_is_reported_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut liveness = Liveness::new(start);
        assert!(!liveness.sample(0, false, at(10)), "the thread has no work");
        assert!(!liveness.sample(1, true, at(11)), "the thread made a step");
        assert!(!liveness.sample(1, true, at(15)));
        assert_eq!(liveness.stall(1, true, at(15)), None);
        assert_eq!(liveness.stall(1, true, at(16)), Some(Duration::from_secs(5)));
        assert!(liveness.sample(1, true, at(17)), "the stall is reported");
        assert!(!liveness.sample(1, true, at(18)), "once");
        assert_eq!(liveness.stall(2, true, at(18)), None, "the thread made a step since the last sample");
        assert_eq!(liveness.stall(1, false, at(18)), None, "the thread has no more work");
        assert!(!liveness.sample(2, true, at(19)));
        assert!(liveness.sample(2, true, at(24)), "another stall is reported");
    }
}
