//! Log events with the fields by which an operator finds a rank: `model`, `tenant`, `instance`, `dp_rank`, `endpoint`.

use std::time::{Duration, Instant};

/// Logs an event of a rank: level, [`RankId`](crate::RankId), other fields and the message.
#[macro_export]
macro_rules! log_rank {
    ($level:ident, $rank:expr, $($rest:tt)+) => {{
        let rank: &$crate::RankId = &$rank;
        $crate::tracing::$level!(
            model = rank.model.model_name.as_str(),
            tenant = rank.model.tenant_id.as_str(),
            instance = rank.instance.to_string().as_str(),
            dp_rank = rank.dp_rank.0,
            $($rest)+
        );
    }};
}

/// Time without an event after which the count starts again.
const QUIET: Duration = Duration::from_secs(60);

/// Rate limit of a repeating log event: occurrences 1, 2, 4, 8 and so on are logged. The count starts again after
/// [`QUIET`] without an occurrence.
#[derive(Debug, Default)]
pub struct Repeats {
    times: u64,
    last: Option<Instant>,
}

impl Repeats {
    /// Counts an occurrence. Returns the count if this occurrence is to be logged.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) >= QUIET) {
            self.times = 0;
        }
        (self.times, self.last) = (self.times + 1, Some(now));
        self.times.is_power_of_two().then_some(self.times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeating_event_is_logged_at_powers_of_two_until_it_is_quiet() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let logged: Vec<u64> =
            (0..1_000).filter_map(|at| repeats.count(start + Duration::from_millis(100 * at))).collect();
        assert_eq!(logged, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        let later = start + Duration::from_millis(100 * 999) + QUIET;
        assert_eq!(repeats.count(later), Some(1));
        assert_eq!(repeats.count(later + QUIET / 2), Some(2));
    }
}
