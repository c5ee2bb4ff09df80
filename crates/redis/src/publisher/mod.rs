//! Writes into the store what this replica's ranks hold, and keeps it confirmed.
//!
//! ```text
//!  beat (a third of the time to live)   which ranks are there, which of them are ours to publish, who else is listed
//!  cycle (when something changed)       take all changes ─▶ batches by bucket ─▶ store; the last batch of a complete
//!                                       cycle says: valid until the time at which the changes were taken + time to live
//! ```

mod bucket;
mod cycle;
mod listing;
mod outage;
mod pace;
mod rank;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use flash_indexer_core::keyed::KeyedMap;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use self::bucket::BucketWriter;
use self::rank::Publishing;
use crate::directory::Directory;
use crate::holder::{Holder, HolderId, PublisherId};
use crate::keys::{Bucket, Keys};
use crate::link::{Link, StoreError};
use crate::shared_rank::SharedRank;

/// A rank that this replica listens to.
#[derive(Debug, Clone)]
pub struct LocalRank {
    /// Who it is.
    pub holder: Holder,
    /// How it fares, for other replicas; the store does not look into it.
    pub state: Vec<u8>,
    /// What it holds.
    pub rank: Arc<SharedRank>,
}

/// Whoever knows which ranks there are to publish.
pub trait Ranks: Send + Sync {
    /// All of them, at this moment.
    fn ranks(&self) -> Vec<LocalRank>;
}

/// What a publisher has done and has to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublisherReport {
    /// Ranks that this replica publishes.
    pub published_ranks: usize,
    /// Of those, the ones that are not written as a whole yet, and count nowhere until they are.
    pub unfinished_ranks: usize,
    /// Changes that wait.
    pub waiting_changes: usize,
    /// Changes written.
    pub written: u64,
    /// Batches written.
    pub batches: u64,
    /// Batches that failed.
    pub failed_batches: u64,
    /// How often a part of the store was not as this replica had left it, so that it was written anew.
    pub rewrites: u64,
    /// How often too many changes of a rank or for a part of the store waited, so that it was written as a whole.
    pub overflows: u64,
    /// Values in the store that are none of ours, as queries of this replica met them.
    pub invalid_values_read: u64,
    /// Such values that this replica has removed.
    pub invalid_values_removed: u64,
    /// Most prefixes that this replica has worked on without a turn of other tasks.
    pub largest_step: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    published_ranks: AtomicUsize,
    unfinished_ranks: AtomicUsize,
    waiting_changes: AtomicUsize,
    written: AtomicU64,
    batches: AtomicU64,
    failed_batches: AtomicU64,
    rewrites: AtomicU64,
    overflows: AtomicU64,
    bucket_overflows: AtomicU64,
    pub(crate) invalid_values_read: AtomicU64,
    invalid_values_removed: AtomicU64,
    largest_step: AtomicUsize,
}

impl Counts {
    pub(crate) fn report(&self) -> PublisherReport {
        PublisherReport {
            published_ranks: self.published_ranks.load(Relaxed),
            unfinished_ranks: self.unfinished_ranks.load(Relaxed),
            waiting_changes: self.waiting_changes.load(Relaxed),
            written: self.written.load(Relaxed),
            batches: self.batches.load(Relaxed),
            failed_batches: self.failed_batches.load(Relaxed),
            rewrites: self.rewrites.load(Relaxed),
            overflows: self.overflows.load(Relaxed) + self.bucket_overflows.load(Relaxed),
            invalid_values_read: self.invalid_values_read.load(Relaxed),
            invalid_values_removed: self.invalid_values_removed.load(Relaxed),
            largest_step: self.largest_step.load(Relaxed),
        }
    }
}

/// Changes taken for one cycle. Further ones wait for the next, and nothing is confirmed meanwhile.
const CYCLE_CHANGES_MAX: usize = 1 << 18;
/// Of a rank that is written as a whole, prefixes in one cycle.
const CYCLE_REST_MAX: usize = 1 << 15;
/// Changes that wait for buckets that cannot be written, all buckets together; with more, the bucket that they are for
/// is written as a whole later.
const UNWRITTEN_CHANGES_MAX: usize = 1 << 18;
/// Prefixes that the publisher works on before other tasks of the runtime take a turn; a single rank's may be added
/// once. About a millisecond.
pub const STEP_PREFIXES_MAX: usize = 1 << 13;
/// Keys of a bucket that wait to be checked for values that are none of ours; further ones are found again.
const SUSPECTS_MAX: usize = 64;
/// Holders in one call.
const HOLDERS_PER_CALL: usize = 256;
/// A session that is not confirmed is forgotten after so many times the time to live.
const FORGOTTEN_AFTER: u32 = 20;
/// Longest wait for the answer to a batch; the connection is given up then.
pub(crate) const WRITE_DEADLINE: Duration = Duration::from_secs(2);
/// Pause after a cycle that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// How long things are believed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// What a publisher has confirmed counts for so long.
    pub(crate) to_live: Duration,
    /// Blocks that nobody writes are kept for so long.
    pub(crate) keep: Duration,
}

impl Times {
    fn beat(self) -> Duration {
        self.to_live / 3
    }

    fn forget(self) -> Duration {
        self.to_live * FORGOTTEN_AFTER
    }

    /// Written again after so long, so that it is kept.
    fn refresh(self) -> Duration {
        self.keep / 3
    }
}

/// What a publisher shares with queries and reports.
pub(crate) struct Shared {
    pub(crate) id: PublisherId,
    pub(crate) keys: Keys,
    pub(crate) times: Times,
    pub(crate) link: Arc<Link>,
    pub(crate) directory: ArcSwap<Directory>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) changed: Arc<Notify>,
    /// The list of holders was read.
    pub(crate) listed: Notify,
    /// Keys, by bucket, whose values queries have found to be none of ours.
    pub(crate) suspects: Mutex<BTreeMap<u16, Vec<Vec<u8>>>>,
}

impl Shared {
    /// Notes keys of a bucket whose values a query found to be none of ours; the publisher has them removed.
    pub(crate) fn suspect(&self, bucket: Bucket, keys: Vec<Vec<u8>>) {
        self.counts.invalid_values_read.fetch_add(keys.len() as u64, Relaxed);
        let mut suspects = self.suspects.lock();
        let known = suspects.entry(bucket.0).or_default();
        for key in keys {
            if known.len() < SUSPECTS_MAX && !known.contains(&key) {
                known.push(key);
            }
        }
        drop(suspects);
        self.changed.notify_one();
    }
}

pub(crate) struct Publisher {
    shared: Arc<Shared>,
    source: Arc<dyn Ranks>,
    buckets: Vec<BucketWriter>,
    ranks: KeyedMap<HolderId, Publishing>,
    last_warning: String,
}

impl Publisher {
    pub(crate) fn new(shared: Arc<Shared>, source: Arc<dyn Ranks>) -> Self {
        let buckets = shared.keys.buckets().map(|bucket| BucketWriter::new(bucket, &shared)).collect();
        Self { shared, source, buckets, ranks: KeyedMap::default(), last_warning: String::new() }
    }

    /// Publishes until it is told to stop, and then takes its ranks off the list.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut next_beat = Instant::now();
        loop {
            let shared = Arc::clone(&self.shared);
            let next_try = self.buckets.iter().filter_map(|bucket| bucket.outage.retry_at()).min();
            let wake_at = next_try.map_or(next_beat, |at| at.min(next_beat));
            tokio::select! {
                () = shared.changed.notified() => {}
                () = tokio::time::sleep_until(wake_at.into()) => {}
                _ = stop.wait_for(|&stop| stop) => break,
            }
            let now = Instant::now();
            let is_beat = now >= next_beat;
            if is_beat {
                next_beat = now + self.shared.times.beat();
            }
            if !self.shared.link.is_usable() {
                self.count();
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    _ = stop.wait_for(|&stop| stop) => break,
                }
                continue;
            }
            // A replica that stood still learns first whether it still publishes.
            let mut has_failed = false;
            if is_beat && let Err(error) = self.beat().await {
                self.warn("failed to renew the list of holders", &error);
                has_failed = true;
            }
            self.remove_invalid_values().await;
            if let Some(error) = self.cycle(is_beat).await {
                self.warn("failed to write to the store", &error);
            } else if is_beat && !has_failed && !std::mem::take(&mut self.last_warning).is_empty() {
                info!(ranks = self.ranks.len(), "shared store accepts writes again");
            }
            self.count();
        }
        self.release(&self.ranks.keys().copied().collect::<Vec<_>>()).await;
    }

    /// Says what went wrong, once until it is something else.
    fn warn(&mut self, what: &str, error: &StoreError) {
        let warning = format!("{what}: {error}");
        if self.last_warning != warning {
            warn!(%error, "{what}");
            self.last_warning = warning;
        }
    }

    fn count(&self) {
        let (mut waiting, mut overflows) = (0, 0);
        for rank in self.ranks.values() {
            let (changes, times) = rank.rank.waiting();
            waiting += changes;
            overflows += times;
        }
        waiting += self.waiting();
        let counts = &self.shared.counts;
        counts.published_ranks.store(self.ranks.len(), Relaxed);
        counts.unfinished_ranks.store(self.ranks.values().filter(|rank| !rank.is_whole()).count(), Relaxed);
        counts.waiting_changes.store(waiting, Relaxed);
        counts.overflows.fetch_max(overflows, Relaxed);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
