//! A bucket that cannot be written: when it is tried again, and what waits for that.
//!
//! Buckets fail for themselves. What waits for one leaves the ranks, so that the others are written and confirmed as if
//! it were not there.

use std::time::{Duration, Instant};

use flash_indexer_core::keyed::KeyedSet;
use flash_indexer_core::prefixes::Prefix;

use crate::holder::HolderId;

/// Pause after a batch that failed; doubled with each further failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause: a node that is back, or elected, is written to after so long.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a bucket that failed waits for; nothing if it did not.
#[derive(Debug, Default)]
pub(super) struct Outage {
    retry_at: Option<Instant>,
    failures: u32,
    /// Prefixes to be read again from their ranks and written.
    waiting: KeyedSet<(HolderId, Prefix)>,
    /// Too many prefixes have waited: the whole bucket is to be written.
    has_dropped: bool,
}

impl Outage {
    /// A batch failed: the bucket is left alone for a while.
    pub(super) fn failed(&mut self, now: Instant) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + pause);
    }

    /// Everything was written.
    pub(super) fn ended(&mut self) {
        (self.retry_at, self.failures) = (None, 0);
    }

    /// The whole bucket will be written, in a session of its own: nothing waits for that.
    pub(super) fn restart(&mut self) {
        self.waiting = KeyedSet::default();
        self.has_dropped = false;
    }

    /// Whether the bucket is to be left alone now.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|at| now < at)
    }

    /// When it is tried again; none if it did not fail.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Lets prefixes wait, unless more than `room` would; the bucket is written as a whole then.
    pub(super) fn wait(&mut self, prefixes: impl IntoIterator<Item = (HolderId, Prefix)>, room: usize) -> Waits {
        if self.has_dropped {
            return Waits::ForWhole;
        }
        for prefix in prefixes {
            self.waiting.insert(prefix);
            if self.waiting.len() > room {
                self.give_up();
                return Waits::Dropped;
            }
        }
        Waits::Kept
    }

    /// Gives up what waits: the bucket is written as a whole.
    pub(super) fn give_up(&mut self) {
        self.waiting = KeyedSet::default();
        self.has_dropped = true;
    }

    /// Whether the whole bucket is to be written.
    pub(super) fn has_dropped(&self) -> bool {
        self.has_dropped
    }

    /// Prefixes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes what waits.
    pub(super) fn take(&mut self) -> KeyedSet<(HolderId, Prefix)> {
        std::mem::take(&mut self.waiting)
    }
}

/// What became of prefixes that are to wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Waits {
    Kept,
    /// There were too many: from now on the bucket waits to be written as a whole.
    Dropped,
    /// The bucket waits for that already.
    ForWhole,
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::{LocalHash, SequenceHash};

    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_end_with_the_outage() {
        let now = Instant::now();
        let mut outage = Outage::default();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            outage.failed(now);
            pauses.push(outage.retry_at().expect("a time").duration_since(now).as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000]);
        assert!(outage.is_paused(now) && !outage.is_paused(now + LONGEST_PAUSE));
        outage.ended();
        assert!(!outage.is_paused(now));
    }

    #[test]
    fn more_than_may_wait_is_dropped_once_and_counted_as_the_whole_bucket() {
        let mut outage = Outage::default();
        let prefix = |at| (HolderId(1), Prefix { first: LocalHash(1), hash: SequenceHash(at) });
        assert_eq!(outage.wait((0..3).map(prefix), 3), Waits::Kept);
        assert_eq!(outage.wait((0..3).map(prefix), 3), Waits::Kept, "the same ones");
        assert_eq!(outage.wait((3..9).map(prefix), 3), Waits::Dropped);
        assert_eq!(outage.wait((9..12).map(prefix), 3), Waits::ForWhole);
        assert_eq!((outage.waiting(), outage.has_dropped()), (0, true));
        outage.restart();
        assert!(!outage.has_dropped());
    }
}
