//! Turns among long responses, which bound the memory of all responses.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_telemetry::metrics::{Limit, Metrics};
use parking_lot::{Condvar, Mutex};

/// Long responses that are received and decoded at a time.
#[derive(Debug, Default)]
pub(super) struct LongPulls {
    running: Mutex<usize>,
    ended: Condvar,
}

impl LongPulls {
    /// Limit of the long responses at a time.
    pub(super) const COUNT_MAX: usize = 4;

    /// Begins to receive a long response, or waits for another one to end. None after `until`.
    pub(super) fn begin(self: &Arc<Self>, until: Instant, metrics: &Metrics) -> Option<LongPull> {
        let mut running = self.running.lock();
        if *running >= Self::COUNT_MAX {
            metrics.limit_reached(Limit::LongPulls);
        }
        while *running >= Self::COUNT_MAX {
            if self.ended.wait_until(&mut running, until).timed_out() && *running >= Self::COUNT_MAX {
                return None;
            }
        }
        *running += 1;
        Some(LongPull(Arc::clone(self)))
    }
}

/// A long response that is being received.
#[derive(Debug)]
pub(super) struct LongPull(Arc<LongPulls>);

impl Drop for LongPull {
    fn drop(&mut self) {
        *self.0.running.lock() -= 1;
        self.0.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flash_indexer_telemetry::metrics::MetricNames;

    use super::*;

    #[test]
    fn a_long_response_waits_for_another_one_to_end() {
        let (pulls, metrics) = (Arc::new(LongPulls::default()), Metrics::new(MetricNames::Own));
        let far = || Instant::now() + Duration::from_secs(60);
        let mut running: Vec<_> = (0..LongPulls::COUNT_MAX).map(|_| pulls.begin(far(), &metrics)).collect();
        assert!(running.iter().all(Option::is_some));
        assert_eq!(metrics.limit_reached_count(Limit::LongPulls), 0);
        assert!(pulls.begin(Instant::now(), &metrics).is_none());
        assert_eq!(metrics.limit_reached_count(Limit::LongPulls), 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pulls.begin(far(), &metrics).is_some());
            running.pop();
            assert!(waiting.join().expect("no panic"));
        });
    }
}
