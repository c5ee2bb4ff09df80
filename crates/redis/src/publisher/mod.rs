//! Publisher: writes the prefixes of the local ranks into the store and confirms them.
//!
//! ```text
//!  heartbeat (a third of the time to live)   renew the leases of the local ranks, read the directory
//!  flush (when something changed)            take all changes ─▶ batches by bucket ─▶ store; the last batch of a
//!                                            complete flush sets: valid until the time of taking + time to live
//! ```

mod bucket;
mod clock;
mod flush;
mod leases;
mod outage;
mod published_rank;
mod yield_budget;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use flash_indexer_core::keyed::KeyedMap;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use self::bucket::BucketWriter;
use self::clock::StoreClock;
use self::published_rank::PublishedRank;
use crate::directory::Directory;
use crate::environment::Environment;
use crate::error::StoreError;
use crate::identity::{Holder, HolderId, PublisherId};
use crate::keys::{Bucket, Keys};
use crate::link::Link;
use crate::rank_prefixes::RankPrefixes;

/// A rank that this replica listens to.
#[derive(Debug, Clone)]
pub struct LocalRank {
    /// Identity and description.
    pub holder: Holder,
    /// Status for other replicas, opaque to the store.
    pub state: Vec<u8>,
    /// Status for other replicas while the store does not have all of the rank.
    pub unfinished_state: Vec<u8>,
    /// The rank's prefixes.
    pub rank: Arc<RankPrefixes>,
}

/// Registry of the ranks that a replica publishes.
pub trait RankRegistry: Send + Sync {
    /// All local ranks at this moment.
    fn ranks(&self) -> Vec<LocalRank>;
}

/// Counters and gauges of a publisher.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublisherReport {
    /// Number of ranks that this replica publishes.
    pub published_ranks: usize,
    /// Number of published ranks that are not completely written yet and therefore not in answers of other replicas.
    pub unfinished_ranks: usize,
    /// Number of changes that wait to be written.
    pub waiting_changes: usize,
    /// Number of changes written.
    pub written: u64,
    /// Number of batches written.
    pub batches: u64,
    /// Number of batches that failed.
    pub failed_batches: u64,
    /// Number of buckets rewritten because the store lacked writes of this replica.
    pub rewrites: u64,
    /// Overflows of the waiting changes of ranks.
    pub rank_overflows: u64,
    /// Overflows of the waiting changes of buckets.
    pub bucket_overflows: u64,
    /// Number of invalid values that queries of this replica found in the store.
    pub invalid_values_read: u64,
    /// Number of invalid values that this replica removed.
    pub invalid_values_removed: u64,
    /// Largest number of prefixes processed without yielding to other tasks.
    pub largest_step: usize,
}

impl PublisherReport {
    /// Number of times that the waiting changes of a rank or a bucket exceeded the limit, and it was rewritten entirely.
    #[must_use]
    pub fn overflows(&self) -> u64 {
        self.rank_overflows + self.bucket_overflows
    }
}

/// Limit of the changes in one flush. Further changes wait for the next one, and nothing is confirmed before.
const FLUSH_CHANGES_MAX: usize = 1 << 18;
/// Limit of the prefixes in one flush that belong to a rank's complete writes.
const FLUSH_REST_MAX: usize = 1 << 15;
/// Limit of the changes that wait for unavailable buckets, all buckets together; beyond it, a bucket is rewritten
/// later.
const UNWRITTEN_CHANGES_MAX: usize = 1 << 18;
/// Prefixes that the publisher processes before it yields, plus at most those of a single rank. About a millisecond.
pub const STEP_PREFIXES_MAX: usize = 1 << 13;
/// Limit of the keys in a bucket that wait to be checked for invalid values; queries find further ones again.
const SUSPECTS_MAX: usize = 64;
/// Limit of the ranks in one call.
const HOLDERS_PER_CALL_MAX: usize = 256;
/// A session without confirmation is removed after this number of times to live.
const SESSION_REMOVAL_FACTOR: u32 = 20;
/// Deadline of a batch; at the deadline the connection is closed.
pub(crate) const WRITE_DEADLINE: Duration = Duration::from_secs(2);
/// Pause while the store is unreachable.
const PAUSE: Duration = Duration::from_millis(100);

/// Validity and retention of entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// Validity of entries after a confirmation.
    pub(crate) time_to_live: Duration,
    /// Retention of blocks that are not written again.
    pub(crate) retention: Duration,
}

impl Timing {
    fn heartbeat(self) -> Duration {
        self.time_to_live / 3
    }

    fn session_removal(self) -> Duration {
        self.time_to_live * SESSION_REMOVAL_FACTOR
    }

    /// Interval at which blocks are rewritten to retain them.
    fn refresh(self) -> Duration {
        self.retention / 3
    }
}

/// State that the publisher shares with queries and reports.
pub(crate) struct PublisherState {
    pub(crate) environment: Environment,
    pub(crate) id: PublisherId,
    pub(crate) keys: Keys,
    pub(crate) timing: Timing,
    pub(crate) link: Arc<Link>,
    pub(crate) directory: ArcSwap<Directory>,
    pub(crate) report: Mutex<PublisherReport>,
    pub(crate) changed: Arc<Notify>,
    /// Notified when the directory was read.
    pub(crate) listed: Notify,
    /// Keys, by bucket, whose values queries have found to be invalid.
    pub(crate) suspects: Mutex<BTreeMap<u16, Vec<Vec<u8>>>>,
}

impl PublisherState {
    /// Records keys of a bucket with invalid values, for the publisher to remove.
    pub(crate) fn suspect(&self, bucket: Bucket, keys: Vec<Vec<u8>>) {
        self.report.lock().invalid_values_read += keys.len() as u64;
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
    shared: Arc<PublisherState>,
    registry: Arc<dyn RankRegistry>,
    buckets: Vec<BucketWriter>,
    ranks: KeyedMap<HolderId, PublishedRank>,
    /// Clock of the node that has the directory.
    directory_clock: Option<StoreClock>,
    /// Whether the directory has the status of a rank that was not completely written.
    lists_unfinished: bool,
    last_warning: String,
}

impl Publisher {
    pub(crate) fn new(shared: Arc<PublisherState>, registry: Arc<dyn RankRegistry>) -> Self {
        let buckets = shared.keys.buckets().map(|bucket| BucketWriter::new(bucket, &shared)).collect();
        Self {
            shared,
            registry,
            buckets,
            ranks: KeyedMap::default(),
            directory_clock: None,
            lists_unfinished: false,
            last_warning: String::new(),
        }
    }

    /// Publishes until it is stopped, then ends its leases.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut next_heartbeat = Instant::now();
        loop {
            let shared = Arc::clone(&self.shared);
            let next_try = self.buckets.iter().filter_map(|bucket| bucket.outage.retry_at()).min();
            let wake_at = next_try.map_or(next_heartbeat, |at| at.min(next_heartbeat));
            tokio::select! {
                // A simulation repeats its choices.
                biased;
                _ = stop.wait_for(|&stop| stop) => break,
                () = shared.changed.notified() => {}
                () = tokio::time::sleep_until(wake_at) => {}
            }
            let now = Instant::now();
            let is_heartbeat = now >= next_heartbeat;
            if is_heartbeat {
                next_heartbeat = now + self.shared.timing.heartbeat();
            }
            if !self.shared.link.is_usable() {
                self.update_gauges();
                tokio::select! {
                    biased;
                    _ = stop.wait_for(|&stop| stop) => break,
                    () = tokio::time::sleep(PAUSE) => {}
                }
                continue;
            }
            let mut has_failed = false;
            // A replica that was suspended renews its leases before it writes.
            let renews_first = is_heartbeat && self.confirmed_until().is_none();
            if renews_first {
                has_failed = !self.renew_leases().await;
            }
            self.remove_invalid_values().await;
            let failed = self.flush(is_heartbeat).await;
            // Otherwise the entries are confirmed before the leases. They are then valid until the leases end.
            if is_heartbeat && !renews_first {
                has_failed = !self.renew_leases().await;
            }
            if let Some(error) = failed {
                self.warn("failed to write to the shared store", &error);
            } else if is_heartbeat && !has_failed && !std::mem::take(&mut self.last_warning).is_empty() {
                info!(ranks = self.ranks.len(), "shared store accepts writes again");
            }
            if std::mem::take(&mut self.lists_unfinished) {
                match self.ranks.values().all(PublishedRank::is_written) {
                    // Lists the ranks that this flush has completed.
                    true => next_heartbeat = Instant::now(),
                    false => self.lists_unfinished = true,
                }
            }
            self.update_gauges();
        }
        self.release(&self.ranks.keys().copied().collect::<Vec<_>>()).await;
    }

    /// Sends a heartbeat, and requests a flush of its changes. Returns whether it succeeded.
    async fn renew_leases(&mut self) -> bool {
        let renewed = self.heartbeat().await;
        self.shared.changed.notify_one();
        if let Err(error) = &renewed {
            self.warn("failed to renew the leases of the local ranks", error);
        }
        renewed.is_ok()
    }

    /// Logs a failure, unless it is the same as the last one.
    fn warn(&mut self, message: &str, error: &StoreError) {
        let warning = format!("{message}: {error}");
        if self.last_warning != warning {
            warn!(%error, "{message}");
            self.last_warning = warning;
        }
    }

    fn update_gauges(&self) {
        let (mut waiting, mut overflows) = (0, 0);
        for rank in self.ranks.values() {
            let (changes, exceeded) = rank.rank.waiting();
            waiting += changes;
            overflows += exceeded;
        }
        waiting += self.waiting();
        let mut report = self.shared.report.lock();
        report.published_ranks = self.ranks.len();
        report.unfinished_ranks = self.ranks.values().filter(|rank| !rank.is_whole()).count();
        report.waiting_changes = waiting;
        report.rank_overflows = report.rank_overflows.max(overflows);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
