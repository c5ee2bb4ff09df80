//! Retry state and waiting changes of an unavailable bucket.
//!
//! Buckets fail independently. The changes of an unavailable bucket leave the ranks, so the other buckets are written
//! and confirmed without delay.

use std::time::Duration;

use flash_indexer_core::keyed::KeyedSet;
use flash_indexer_core::prefixes::Prefix;
use tokio::time::Instant;

use crate::identity::HolderId;

/// Backoff after a failed batch; doubled with each further failure.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest backoff; bounds the delay after a failover.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Retry state of a bucket; empty if its last batch succeeded.
#[derive(Debug, Default)]
pub(super) struct Outage {
    retry_at: Option<Instant>,
    failures: u32,
    /// Prefixes to be read again from their ranks and written.
    waiting: KeyedSet<(HolderId, Prefix)>,
    /// Too many prefixes have waited: the whole bucket is to be rewritten.
    needs_rewrite: bool,
}

impl Outage {
    /// Records a failed batch and starts the backoff.
    pub(super) fn record_failure(&mut self, now: Instant) {
        let pause = BACKOFF_MIN.saturating_mul(1 << self.failures.min(16)).min(BACKOFF_MAX);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + pause);
    }

    /// Records a success.
    pub(super) fn record_success(&mut self) {
        (self.retry_at, self.failures) = (None, 0);
    }

    /// Discards the waiting prefixes: the whole bucket is rewritten in a new session.
    pub(super) fn reset(&mut self) {
        self.waiting = KeyedSet::default();
        self.needs_rewrite = false;
    }

    /// Whether the backoff lasts.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|at| now < at)
    }

    /// Time of the next attempt; none if the last batch succeeded.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Buffers prefixes, unless the bucket is to be rewritten already. If more than `room` wait, they are discarded and
    /// the bucket is rewritten. Returns whether this call has discarded them.
    pub(super) fn buffer(&mut self, prefixes: impl IntoIterator<Item = (HolderId, Prefix)>, room: usize) -> bool {
        if self.needs_rewrite {
            return false;
        }
        for prefix in prefixes {
            self.waiting.insert(prefix);
            if self.waiting.len() > room {
                self.discard();
                return true;
            }
        }
        false
    }

    /// Discards the waiting prefixes; the bucket is rewritten when it is available.
    pub(super) fn discard(&mut self) {
        self.waiting = KeyedSet::default();
        self.needs_rewrite = true;
    }

    /// Whether the whole bucket is to be rewritten.
    pub(super) fn needs_rewrite(&self) -> bool {
        self.needs_rewrite
    }

    /// Number of waiting prefixes.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the waiting prefixes.
    pub(super) fn take(&mut self) -> KeyedSet<(HolderId, Prefix)> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::{LocalHash, SequenceHash};

    use super::*;

    #[test]
    fn the_backoff_doubles_up_to_its_limit_and_ends_with_a_success() {
        let now = Instant::now();
        let mut outage = Outage::default();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            outage.record_failure(now);
            pauses.push(outage.retry_at().expect("a time").duration_since(now).as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000]);
        assert!(outage.is_paused(now) && !outage.is_paused(now + BACKOFF_MAX));
        outage.record_success();
        assert!(!outage.is_paused(now));
    }

    #[test]
    fn prefixes_beyond_the_limit_are_discarded_once_for_a_rewrite() {
        let mut outage = Outage::default();
        let prefix = |at| (HolderId(1), Prefix { first: LocalHash(1), hash: SequenceHash(at) });
        assert!(!outage.buffer((0..3).map(prefix), 3));
        assert!(!outage.buffer((0..3).map(prefix), 3), "the same prefixes");
        assert_eq!((outage.waiting(), outage.needs_rewrite()), (3, false));
        assert!(outage.buffer((3..9).map(prefix), 3), "more than the limit");
        assert!(!outage.buffer((9..12).map(prefix), 3), "a rewrite is pending already");
        assert_eq!((outage.waiting(), outage.needs_rewrite()), (0, true));
        outage.reset();
        assert!(!outage.needs_rewrite());
    }
}
