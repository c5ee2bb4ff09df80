//! Whether a thread moves while it has work.

use std::time::{Duration, Instant};

use super::STANDSTILL_MAX;

/// What samples of a thread's progress have shown.
#[derive(Debug)]
pub(super) struct Liveness {
    /// The count of steps at the last sample.
    moves: u64,
    /// The last sample at which the thread had moved, or had nothing to do.
    moved_at: Instant,
    /// Whether the standstill of now was reported.
    is_reported: bool,
}

impl Liveness {
    pub(super) fn new(now: Instant) -> Self {
        Self { moves: 0, moved_at: now, is_reported: false }
    }

    /// Takes in a sample; true once for each standstill that becomes too long.
    pub(super) fn sample(&mut self, moves: u64, has_work: bool, now: Instant) -> bool {
        if moves != self.moves || !has_work {
            (self.moves, self.moved_at, self.is_reported) = (moves, now, false);
            return false;
        }
        let is_new = !self.is_reported && self.standstill(moves, has_work, now).is_some();
        self.is_reported |= is_new;
        is_new
    }

    /// For how long the thread has stood still, if that is too long.
    pub(super) fn standstill(&self, moves: u64, has_work: bool, now: Instant) -> Option<Duration> {
        let stood = now.saturating_duration_since(self.moved_at);
        (has_work && moves == self.moves && stood >= STANDSTILL_MAX).then_some(stood)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_counts_only_with_work_and_is_reported_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut liveness = Liveness::new(start);
        assert!(!liveness.sample(0, false, at(10)), "nothing to do");
        assert!(!liveness.sample(1, true, at(11)), "it has moved");
        assert!(!liveness.sample(1, true, at(15)));
        assert_eq!(liveness.standstill(1, true, at(15)), None);
        assert_eq!(liveness.standstill(1, true, at(16)), Some(Duration::from_secs(5)));
        assert!(liveness.sample(1, true, at(17)), "it is reported");
        assert!(!liveness.sample(1, true, at(18)), "once");
        assert_eq!(liveness.standstill(2, true, at(18)), None, "it has moved since the last sample");
        assert_eq!(liveness.standstill(1, false, at(18)), None, "its work is done");
        assert!(!liveness.sample(2, true, at(19)));
        assert!(liveness.sample(2, true, at(24)), "another standstill");
    }
}
