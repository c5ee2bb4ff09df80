//! Estimates of a node's clock, by which entries and leases expire.

use std::time::Duration;

use tokio::time::Instant;

use super::millis;

/// The clock of a node of the store, read at the time of a response.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreClock {
    millis: u64,
    responded_at: Instant,
    round_trip: Duration,
}

impl StoreClock {
    /// Sum of the roundings to milliseconds by which a lease could exceed its entries, each below 1 ms: two clocks, and
    /// the estimate of each.
    const ROUNDING: Duration = Duration::from_millis(4);

    /// The clock of a node whose script returned `millis`, in a call from `sent_at` to now.
    pub(super) fn read(millis: u64, sent_at: Instant) -> Self {
        let responded_at = Instant::now();
        Self { millis, responded_at, round_trip: responded_at.saturating_duration_since(sent_at) }
    }

    /// The node's clock at a moment, in milliseconds; never too late, and too early by a round trip at most.
    pub(super) fn at(self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.responded_at);
        let before = self.responded_at.saturating_duration_since(moment);
        (self.millis + millis(since)).saturating_sub(millis(before))
    }

    /// A moment at which the node's clock has not reached [`StoreClock::at`] of `moment`.
    pub(super) fn is_before(self, moment: Instant) -> Option<Instant> {
        moment.checked_sub(self.round_trip + Self::ROUNDING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(millis: u64, round_trip: Duration) -> StoreClock {
        StoreClock { millis, responded_at: Instant::now(), round_trip }
    }

    #[test]
    fn the_estimate_is_never_too_late() {
        let clock = clock(1_000_000, Duration::ZERO);
        let now = clock.responded_at;
        assert_eq!(clock.at(now + Duration::from_millis(1_500)), 1_001_500);
        assert_eq!(clock.at(now - Duration::from_millis(1_500)), 998_500, "a moment before the answer");
    }

    #[test]
    fn a_lease_ends_before_its_entries_whatever_the_latency() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        // Clock of both nodes at a moment. Calls last up to a second; their scripts run at any moment of them.
        let real = |moment: Instant| 5_000_000 + millis(moment.duration_since(start));
        for round_trip in [0, 1, 130, 1_000] {
            for runs_after in [0, round_trip / 2, round_trip] {
                let responded_at = start + ms(10_000);
                let runs_at = responded_at - ms(round_trip) + ms(runs_after);
                let clock = StoreClock { millis: real(runs_at), responded_at, round_trip: ms(round_trip) };
                let until = responded_at + ms(1_500);
                let lease = clock.is_before(until).expect("a moment");
                // The entries are valid at the lease's end by the node's own clock.
                assert!(real(lease) < clock.at(until), "round trip {round_trip} ms, {runs_after} ms to the script");
                // Another node's lease ends at its estimate, which is not later than that moment.
                assert!(clock.at(lease) <= real(lease));
            }
        }
    }
}
