//! One flush: writes the waiting changes of every bucket and confirms the written state.

use std::sync::Arc;

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::prefixes::Prefix;
use parking_lot::Mutex;
use redis::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::bucket::{BucketWriter, Changes, Failure, Outcome};
use super::yield_budget::YieldBudget;
use super::{
    FLUSH_CHANGES_MAX, FLUSH_REST_MAX, Publisher, PublisherReport, PublisherState, STEP_PREFIXES_MAX,
    UNWRITTEN_CHANGES_MAX, WRITE_DEADLINE,
};
use crate::error::StoreError;
use crate::identity::HolderId;
use crate::keys::Bucket;
use crate::script::REMOVE_INVALID;

impl Publisher {
    /// Writes all waiting changes and confirms the written state. Returns the first error.
    pub(super) async fn flush(&mut self, is_heartbeat: bool) -> Option<StoreError> {
        let start = Instant::now();
        let (mut work, is_complete) = self.collect(start).await;
        let mut writing = JoinSet::new();
        let buckets = std::mem::take(&mut self.buckets);
        for (mut bucket, changes) in buckets.into_iter().zip(work.drain(..)) {
            let confirm = is_complete && (is_heartbeat || bucket.needs_confirming(start));
            let has_failed = bucket.outage.retry_at().is_some() || bucket.outage.needs_rewrite();
            let is_idle = changes.is_empty() && !confirm && !bucket.has_control_changes() && !has_failed;
            if is_idle || bucket.outage.is_paused(start) {
                self.buckets.push(bucket);
                continue;
            }
            let link = Arc::clone(&self.shared.link);
            writing.spawn(async move {
                let outcome = match bucket.outage.needs_rewrite() {
                    true => bucket.probe(&link).await,
                    false => bucket.write(&link, changes, confirm.then_some(start)).await,
                };
                (bucket, outcome)
            });
        }
        let mut failed = None;
        while let Some(joined) = writing.join_next().await {
            // A panicked write has lost its bucket: the publisher restarts.
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

    /// Takes the changes of all ranks, sorted by bucket; false if there are more. Changes of unavailable buckets stay
    /// in these buckets and do not delay the others.
    async fn collect(&mut self, now: Instant) -> (Vec<Changes>, bool) {
        let mut work: Vec<Changes> = self.buckets.iter().map(|_| Changes::default()).collect();
        let (mut room, mut rest_room, mut is_complete) = (FLUSH_CHANGES_MAX, FLUSH_REST_MAX, true);
        let mut refreshing = self.ranks.values().any(|rank| !rank.is_whole());
        let shared = Arc::clone(&self.shared);
        let PublisherState { keys, timing, report, environment, .. } = &*shared;
        let mut budget = YieldBudget::default();
        for (&holder, rank) in &mut self.ranks {
            if rank.epoch != Some(rank.rank.epoch()) {
                rank.start(holder, now, &mut self.buckets, environment);
                budget.spend(self.buckets.len()).await;
            }
            if !refreshing && rank.written_at + timing.refresh() < now {
                rank.refresh(now);
                refreshing = true;
            }
            loop {
                let (taken, has_more) = rank.take(room.min(STEP_PREFIXES_MAX));
                let count = taken.len();
                room -= count;
                rank.sort(holder, keys, taken, &mut work, false);
                budget.spend(count + 1).await;
                if !has_more || room == 0 || count == 0 {
                    is_complete &= !has_more;
                    break;
                }
            }
            if rest_room > 0 {
                budget.spend(rank.read_rest(keys, environment).await).await;
            }
            while rest_room > 0 {
                let (rest, count) = rank.take_rest(rest_room.min(STEP_PREFIXES_MAX));
                if count == 0 {
                    break;
                }
                rest_room -= count;
                rank.sort(holder, keys, rest, &mut work, rank.is_refresh);
                budget.spend(count).await;
            }
            rank.record_complete(&mut self.buckets);
        }
        for (at, changes) in work.iter_mut().enumerate() {
            budget.spend(self.settle(at, changes, now)).await;
        }
        let mut report = report.lock();
        report.largest_step = report.largest_step.max(budget.largest);
        drop(report);
        (work, is_complete)
    }

    /// Buffers the changes of an unavailable bucket, or adds its buffered changes. Returns the number of prefixes
    /// processed.
    fn settle(&mut self, at: usize, changes: &mut Changes, now: Instant) -> usize {
        let outage = &mut self.buckets[at].outage;
        if outage.is_paused(now) || outage.needs_rewrite() {
            let Changes { changed, refreshed } = std::mem::take(changes);
            let waiting: Vec<_> =
                changed.iter().chain(&refreshed).map(|change| (change.holder, change.prefix)).collect();
            let count = waiting.len();
            let all = self.waiting();
            let bucket = &mut self.buckets[at];
            let others = all - bucket.outage.waiting();
            buffer_for_bucket(bucket, waiting, others, &self.shared.report);
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
                rank.add(holder, rank.read(&prefixes), at, changes);
            }
        }
        count
    }

    /// Number of prefixes that wait for unavailable buckets.
    pub(super) fn waiting(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.outage.waiting()).sum()
    }

    /// Takes a bucket back after a write.
    fn finish(&mut self, mut bucket: BucketWriter, outcome: Outcome) -> Option<StoreError> {
        let shared = Arc::clone(&self.shared);
        let mut report = shared.report.lock();
        report.batches += outcome.batches;
        report.written += outcome.written;
        drop(report);
        let error = match outcome.failed {
            None => {
                bucket.outage.record_success();
                None
            }
            Some(Failure::Store(error)) => {
                shared.report.lock().failed_batches += 1;
                bucket.outage.record_failure(Instant::now());
                Some(error)
            }
            Some(failure) => {
                if let Failure::InvalidValues(removed) = failure {
                    self.log_removed(removed, &format!("bucket {}", bucket.bucket().0));
                } else {
                    info!(bucket = bucket.bucket().0, "store lost writes; rewriting bucket");
                }
                shared.report.lock().rewrites += 1;
                bucket.outage.record_success();
                bucket.restart();
                for (&holder, rank) in &mut self.ranks {
                    rank.restart_bucket(holder, &mut bucket, &self.shared.environment);
                }
                self.shared.changed.notify_one();
                None
            }
        };
        if error.is_some() {
            let waiting = self.waiting();
            buffer_for_bucket(&mut bucket, outcome.unwritten, waiting, &shared.report);
        }
        self.buckets.push(bucket);
        error
    }

    /// Removes invalid values that queries have found. Every publisher of their buckets then rewrites them.
    pub(super) async fn remove_invalid_values(&mut self) {
        let suspects = std::mem::take(&mut *self.shared.suspects.lock());
        for (bucket, keys) in suspects {
            let tables = self.shared.keys.bucket_tables(Bucket(bucket));
            let call = REMOVE_INVALID.on(tables).keys(keys);
            match self.shared.link.call(&call, WRITE_DEADLINE).await {
                Ok(Value::Int(0)) => {}
                Ok(Value::Int(removed)) => self.log_removed(removed.unsigned_abs(), &format!("bucket {bucket}")),
                Ok(_) => {
                    self.warn("failed to remove invalid values", &StoreError::Protocol("unexpected reply to a removal"))
                }
                // The next query finds the keys again.
                Err(error) => self.warn("failed to remove invalid values", &error),
            }
        }
    }

    pub(super) fn log_removed(&self, removed: u64, key: &str) {
        self.shared.report.lock().invalid_values_removed += removed;
        warn!(removed, key, "removed invalid values from the shared store; rewriting the affected part");
    }
}

/// Buffers prefixes for an unavailable bucket; `others` wait for other buckets.
fn buffer_for_bucket(
    bucket: &mut BucketWriter,
    prefixes: impl IntoIterator<Item = (HolderId, Prefix)>,
    others: usize,
    report: &Mutex<PublisherReport>,
) {
    let room = UNWRITTEN_CHANGES_MAX.saturating_sub(others);
    let has_overflowed = bucket.outage.buffer(prefixes, room);
    if has_overflowed {
        info!(
            bucket = bucket.bucket().0,
            "waiting changes of the shared store reached the limit; the bucket is rewritten later"
        );
        report.lock().bucket_overflows += 1;
    }
}
