//! One round of writing: what has changed, by bucket, and the confirmation of what is there.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::prefixes::Prefix;
use redis::Value;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::bucket::{BucketWriter, Changes, Failure, Outcome};
use super::outage::Waits;
use super::pace::Pace;
use super::{
    CYCLE_CHANGES_MAX, CYCLE_REST_MAX, Counts, Publisher, STEP_PREFIXES_MAX, Shared, UNWRITTEN_CHANGES_MAX,
    WRITE_DEADLINE,
};
use crate::holder::HolderId;
use crate::keys::Bucket;
use crate::link::StoreError;
use crate::script::REMOVE_INVALID;

impl Publisher {
    /// Writes everything that has changed, and confirms what is there. The first error, if there was one.
    pub(super) async fn cycle(&mut self, is_beat: bool) -> Option<StoreError> {
        let start = Instant::now();
        let (mut work, is_complete) = self.collect(start).await;
        let mut writing = JoinSet::new();
        let buckets = std::mem::take(&mut self.buckets);
        for (mut bucket, changes) in buckets.into_iter().zip(work.drain(..)) {
            let confirm = is_complete && (is_beat || bucket.needs_confirming(start));
            let has_failed = bucket.outage.retry_at().is_some() || bucket.outage.has_dropped();
            let is_idle = changes.is_empty() && !confirm && !bucket.has_news() && !has_failed;
            if is_idle || bucket.outage.is_paused(start) {
                self.buckets.push(bucket);
                continue;
            }
            let link = Arc::clone(&self.shared.link);
            writing.spawn(async move {
                let outcome = match bucket.outage.has_dropped() {
                    true => bucket.probe(&link).await,
                    false => bucket.write(&link, changes, confirm.then_some(start)).await,
                };
                (bucket, outcome)
            });
        }
        let mut failed = None;
        while let Some(joined) = writing.join_next().await {
            // A task that panicked has taken its bucket along; there is nothing to go on with.
            let (bucket, outcome) = joined.expect("writing does not panic");
            if let Some(error) = self.finish(bucket, outcome) {
                failed.get_or_insert(error);
            }
        }
        self.buckets.sort_by_key(BucketWriter::bucket);
        if !is_complete || self.ranks.values().any(|rank| !rank.is_whole()) {
            self.shared.changed.notify_one();
        }
        failed
    }

    /// Takes the changes of all ranks, by bucket; false if there are more. Changes for buckets that cannot be written
    /// wait with these, and hold back no other bucket.
    async fn collect(&mut self, now: Instant) -> (Vec<Changes>, bool) {
        let mut work: Vec<Changes> = self.buckets.iter().map(|_| Changes::default()).collect();
        let (mut room, mut rest_room, mut is_complete) = (CYCLE_CHANGES_MAX, CYCLE_REST_MAX, true);
        let mut refreshing = self.ranks.values().any(|rank| !rank.is_whole());
        let shared = Arc::clone(&self.shared);
        let Shared { keys, times, counts, .. } = &*shared;
        let mut pace = Pace::default();
        for (&holder, rank) in &mut self.ranks {
            if rank.life != Some(rank.rank.life()) {
                rank.start(holder, now, &mut self.buckets);
                pace.spend(self.buckets.len()).await;
            }
            if !refreshing && rank.written_at + times.refresh() < now {
                rank.refresh(now);
                refreshing = true;
            }
            loop {
                let taken = rank.take(room.min(STEP_PREFIXES_MAX));
                let count = taken.changes.len();
                room -= count;
                rank.sort(holder, keys, taken.changes, &mut work, false);
                pace.spend(count + 1).await;
                if !taken.has_more || room == 0 || count == 0 {
                    is_complete &= !taken.has_more;
                    break;
                }
            }
            if rest_room > 0 {
                pace.spend(rank.read_rest(keys).await).await;
            }
            while rest_room > 0 {
                let (rest, count) = rank.take_rest(rest_room.min(STEP_PREFIXES_MAX));
                if count == 0 {
                    break;
                }
                rest_room -= count;
                rank.sort(holder, keys, rest, &mut work, rank.is_refreshing());
                pace.spend(count).await;
            }
            rank.note_whole(&mut self.buckets);
        }
        for (at, changes) in work.iter_mut().enumerate() {
            pace.spend(self.settle(at, changes, now)).await;
        }
        counts.largest_step.fetch_max(pace.largest(), Relaxed);
        (work, is_complete)
    }

    /// Lets the changes of a bucket that is left alone wait, or adds what has waited. Returns prefixes worked on.
    fn settle(&mut self, at: usize, changes: &mut Changes, now: Instant) -> usize {
        let outage = &mut self.buckets[at].outage;
        if outage.is_paused(now) || outage.has_dropped() {
            let Changes { changed, refreshed } = std::mem::take(changes);
            let waiting: Vec<_> =
                changed.iter().chain(&refreshed).map(|change| (change.holder, change.prefix)).collect();
            let count = waiting.len();
            let all = self.waiting();
            let bucket = &mut self.buckets[at];
            let others = all - bucket.outage.waiting();
            wait_for_bucket(bucket, waiting, others, &self.shared.counts);
            return count;
        }
        let waited = outage.take();
        let count = waited.len();
        let mut by_holder: KeyedMap<HolderId, Vec<Prefix>> = KeyedMap::default();
        for (holder, prefix) in waited {
            by_holder.entry(holder).or_default().push(prefix);
        }
        for (holder, prefixes) in by_holder {
            if let Some(rank) = self.ranks.get(&holder) {
                rank.add(holder, rank.reread(&prefixes), at, changes);
            }
        }
        count
    }

    /// Prefixes that wait for buckets.
    pub(super) fn waiting(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.outage.waiting()).sum()
    }

    /// Takes a bucket back after writing to it.
    fn finish(&mut self, mut bucket: BucketWriter, outcome: Outcome) -> Option<StoreError> {
        let counts = Arc::clone(&self.shared.counts);
        counts.batches.fetch_add(outcome.batches, Relaxed);
        counts.written.fetch_add(outcome.written, Relaxed);
        let error = match outcome.failed {
            None => {
                bucket.outage.ended();
                None
            }
            Some(Failure::Link(error)) => {
                counts.failed_batches.fetch_add(1, Relaxed);
                bucket.outage.failed(Instant::now());
                Some(error)
            }
            Some(failure) => {
                if let Failure::InvalidValues(removed) = failure {
                    self.note_removed(removed, &format!("bucket {}", bucket.bucket().0));
                } else {
                    info!(bucket = bucket.bucket().0, "store lost writes; rewriting bucket");
                }
                counts.rewrites.fetch_add(1, Relaxed);
                bucket.outage.ended();
                bucket.restart();
                for (&holder, rank) in &mut self.ranks {
                    rank.restart_bucket(holder, &mut bucket);
                }
                self.shared.changed.notify_one();
                None
            }
        };
        if error.is_some() {
            let waiting = self.waiting();
            wait_for_bucket(&mut bucket, outcome.unwritten, waiting, &counts);
        }
        self.buckets.push(bucket);
        error
    }

    /// Removes values that queries have found to be none of ours. Every publisher of their buckets writes these as a
    /// whole then.
    pub(super) async fn remove_invalid_values(&mut self) {
        let suspects = std::mem::take(&mut *self.shared.suspects.lock());
        for (bucket, keys) in suspects {
            let tables = self.shared.keys.bucket_tables(Bucket(bucket));
            let call = REMOVE_INVALID.on(tables).keys(keys);
            match self.shared.link.call(&call, WRITE_DEADLINE).await {
                Ok(Value::Int(0)) => {}
                Ok(Value::Int(removed)) => self.note_removed(removed.unsigned_abs(), &format!("bucket {bucket}")),
                Ok(_) => self.warn("failed to remove invalid values", &StoreError::Protocol("a number of values")),
                // The next query finds them again.
                Err(error) => self.warn("failed to remove invalid values", &error),
            }
        }
    }

    pub(super) fn note_removed(&self, removed: u64, place: &str) {
        self.shared.counts.invalid_values_removed.fetch_add(removed, Relaxed);
        warn!(removed, place, "the store had values that no replica writes: removed, and written as a whole again");
    }
}

/// Lets prefixes wait for a bucket beside those that wait for others.
fn wait_for_bucket(
    bucket: &mut BucketWriter,
    prefixes: impl IntoIterator<Item = (HolderId, Prefix)>,
    others: usize,
    counts: &Counts,
) {
    let room = UNWRITTEN_CHANGES_MAX.saturating_sub(others);
    if bucket.outage.wait(prefixes, room) == Waits::Dropped {
        info!(bucket = bucket.bucket().0, "too many changes wait for the store; the bucket is rewritten later");
        counts.bucket_overflows.fetch_add(1, Relaxed);
    }
}
