//! Common duration of several threads.

use std::time::{Duration, Instant};

/// Start and end of one thread's part of a measure. Each thread reads the clock itself: a thread that waits for the others
/// may be scheduled after they have ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    start: Instant,
    end: Instant,
}

impl Span {
    /// Runs `work` on this thread.
    pub(super) fn of(work: impl FnOnce()) -> Self {
        let start = Instant::now();
        work();
        Self { start, end: Instant::now() }
    }
}

/// Time from the first start to the last end; zero without spans.
pub(super) fn took(spans: impl IntoIterator<Item = Span>) -> Duration {
    let whole = spans
        .into_iter()
        .reduce(|whole, span| Span { start: whole.start.min(span.start), end: whole.end.max(span.end) });
    whole.map_or(Duration::ZERO, |Span { start, end }| end - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_run_one_after_the_other_count_from_first_start_to_last_end() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let span = |start, end| Span { start: at(start), end: at(end) };
        assert_eq!(took([span(5, 7), span(1, 2)]), Duration::from_secs(6));
        assert_eq!(took([span(1, 9), span(2, 3)]), Duration::from_secs(8));
        assert_eq!(took([]), Duration::ZERO);
        assert!(took([Span::of(|| while start.elapsed().is_zero() {})]) <= start.elapsed());
    }
}
