//! Turns of ingest threads at the processors.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use flash_indexer_telemetry::clock::Clock;

/// Time after a yield before a thread yields its processor again. The system's time slices are milliseconds, and an event of a quiet
/// engine waits for one at each thread that it passes.
const TURN: Duration = Duration::from_micros(50);
/// Duration of a period. A message that starts one while another is running extends it if less than half of it is left.
const PERIOD: Duration = Duration::from_secs(1);

/// Periods in which ingest threads take turns at the processors. A message of an engine without queued messages starts one if other
/// engines have a backlog when it arrives. At other times a thread works for as long as the system lets it, which is faster.
///
/// # Consistency
///
/// All threads share one number, without an order to other memory: a thread may see a change late.
pub struct ProcessorTurns {
    clock: Clock,
    created: Instant,
    /// End of the period in microseconds after `created`; 0 outside a period.
    end: AtomicU64,
}

/// The turn of one thread.
pub struct ProcessorTurn {
    shared: Arc<ProcessorTurns>,
    end: Instant,
}

impl ProcessorTurns {
    /// Without a period.
    pub fn new(clock: Clock) -> Self {
        Self { created: clock.now(), clock, end: AtomicU64::new(0) }
    }

    /// Starts a period, or extends one of which less than half is left: all threads read the number.
    pub fn start_period(&self) {
        let now = self.clock.now();
        if self.end.load(Relaxed) < self.micros(now + PERIOD / 2) {
            self.end.store(self.micros(now + PERIOD), Relaxed);
        }
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.created).as_micros()).unwrap_or(u64::MAX)
    }

    /// Whether a period is running.
    pub fn is_period(&self) -> bool {
        self.now_in_period().is_some()
    }

    /// The present moment if a period is running. Reads the clock only during one, and once after it.
    fn now_in_period(&self) -> Option<Instant> {
        let end = self.end.load(Relaxed);
        if end == 0 {
            return None;
        }
        let now = self.clock.now();
        if self.micros(now) < end {
            return Some(now);
        }
        // A failure means that the period was extended.
        let _ = self.end.compare_exchange(end, 0, Relaxed, Relaxed);
        None
    }
}

impl ProcessorTurn {
    /// The turn of a thread that starts.
    pub fn new(shared: Arc<ProcessorTurns>) -> Self {
        let end = shared.clock.now();
        Self { shared, end }
    }

    /// Yields the processor to other threads if a period is running and the turn is over. Call it after each bounded part of work.
    ///
    /// Returns whether it yielded.
    pub fn yield_if_over(&mut self) -> bool {
        let is_over = self.shared.now_in_period().is_some_and(|now| now >= self.end);
        if is_over {
            std::thread::yield_now();
            self.end = self.shared.clock.now() + TURN;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_telemetry::clock::SimulatedTime;

    use super::*;

    #[test]
    fn a_thread_yields_only_in_a_period_and_once_in_a_turn() {
        let time = SimulatedTime::starting_at(0);
        let shared = Arc::new(ProcessorTurns::new(Clock::Simulated(Arc::clone(&time))));
        let mut turn = ProcessorTurn::new(Arc::clone(&shared));
        assert!(!turn.yield_if_over(), "no period");

        shared.start_period();
        assert!(turn.yield_if_over());
        assert!(!turn.yield_if_over(), "the turn has just begun");
        time.advance_ms(1);
        assert!(turn.yield_if_over());

        time.advance_ms(400);
        shared.start_period();
        assert!(shared.is_period() && shared.end.load(Relaxed) == 1_000_000, "more than half of it was left");
        time.advance_ms(500);
        shared.start_period();
        time.advance_ms(999);
        assert!(turn.yield_if_over(), "the period was extended");
        time.advance_ms(1);
        assert!(!turn.yield_if_over(), "the period is over");
        assert_eq!(shared.end.load(Relaxed), 0);
    }
}
