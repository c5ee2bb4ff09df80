//! Writes into the store what this replica's ranks hold, and keeps it confirmed.
//!
//! ```text
//!  beat (a third of the time to live)   which ranks are there, which of them are ours to publish, who else is listed
//!  cycle (when something changed)       take all changes ─▶ batches by bucket ─▶ store; the last batch of a complete
//!                                       cycle says: valid until the time at which the changes were taken + time to live
//! ```

mod bucket;
mod rank;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use redis::Value;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use self::bucket::{BucketWriter, Changes, Outcome};
use self::rank::Publishing;
use crate::directory::{Directory, with_scope};
use crate::holder::{Holder, HolderId, PublisherId};
use crate::keys::Keys;
use crate::link::{Link, LinkError};
use crate::script::{LIST, RELEASE, RENEW};
use crate::shared_rank::SharedRank;

/// A rank that this replica listens to.
#[derive(Debug, Clone)]
pub struct OwnRank {
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
    fn ranks(&self) -> Vec<OwnRank>;
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
    /// How often too many changes of a rank waited, so that it was written anew.
    pub overflows: u64,
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
            overflows: self.overflows.load(Relaxed),
        }
    }
}

/// Changes taken for one cycle. Further ones wait for the next, and nothing is confirmed meanwhile.
const CYCLE_CHANGES_MAX: usize = 1 << 18;
/// Of a rank that is written as a whole, prefixes in one cycle.
const CYCLE_REST_MAX: usize = 1 << 15;
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
}

pub(crate) struct Publisher {
    shared: Arc<Shared>,
    source: Arc<dyn Ranks>,
    buckets: Vec<BucketWriter>,
    ranks: FxHashMap<HolderId, Publishing>,
    last_warning: String,
}

impl Publisher {
    pub(crate) fn new(shared: Arc<Shared>, source: Arc<dyn Ranks>) -> Self {
        let buckets = shared.keys.buckets().map(|bucket| BucketWriter::new(bucket, &shared)).collect();
        Self { shared, source, buckets, ranks: FxHashMap::default(), last_warning: String::new() }
    }

    /// Publishes until it is told to stop, and then takes its ranks off the list.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut next_beat = Instant::now();
        loop {
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                () = shared.changed.notified() => {}
                () = tokio::time::sleep_until(next_beat.into()) => {}
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
            if is_beat && let Err(error) = self.beat().await {
                self.warn("failed to renew the list of holders", &error);
            }
            let failed = self.cycle(is_beat).await;
            self.count();
            if let Some(error) = failed {
                self.warn("failed to write to the store", &error);
                tokio::time::sleep(PAUSE).await;
                self.shared.changed.notify_one();
            }
        }
        self.release(&self.ranks.keys().copied().collect::<Vec<_>>()).await;
    }

    /// Looks which ranks there are and which are to be published here.
    async fn beat(&mut self) -> Result<(), LinkError> {
        let source = Arc::clone(&self.source);
        // Off the threads that serve requests: it looks at every rank.
        let own = match tokio::task::spawn_blocking(move || source.ranks()).await {
            Ok(own) => own,
            // This task starts again then.
            Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
            // The runtime ends.
            Err(_) => return Ok(()),
        };
        let known: FxHashSet<HolderId> = own.iter().map(|own| own.holder.id).collect();
        let gone: Vec<HolderId> = self.ranks.keys().filter(|id| !known.contains(id)).copied().collect();
        for id in &gone {
            self.retire(*id);
        }
        self.release(&gone).await;
        for chunk in own.chunks(HOLDERS_PER_CALL) {
            let mine = self.renew(chunk).await?;
            for (own, is_mine) in chunk.iter().zip(mine) {
                self.assign(own, is_mine);
            }
        }
        self.list().await
    }

    async fn renew(&self, ranks: &[OwnRank]) -> Result<Vec<bool>, LinkError> {
        let Shared { id, keys, times, link, .. } = &*self.shared;
        let mut call = RENEW.on(keys.list()).argument(id.0.to_be_bytes()).number(millis(times.to_live));
        for OwnRank { holder, state, .. } in ranks {
            call = call.argument(holder.id.0.to_be_bytes());
            call = call.argument(with_scope(holder.scope, &holder.description)).argument(state.clone());
        }
        let Value::Array(mine) = link.call(&call, WRITE_DEADLINE).await? else {
            return Err(LinkError::Strange("an answer to a renewal"));
        };
        Ok(mine.into_iter().map(|mine| mine == Value::Int(1)).collect())
    }

    fn assign(&mut self, own: &OwnRank, is_mine: bool) {
        let id = own.holder.id;
        let wanted = is_mine && own.rank.withheld().is_none();
        let is_other = |known: &Publishing| !Arc::ptr_eq(&known.rank, &own.rank);
        if self.ranks.get(&id).is_some_and(|known| !wanted || is_other(known)) {
            self.retire(id);
        }
        if wanted && !self.ranks.contains_key(&id) {
            let buckets = self.buckets.len();
            self.ranks.insert(id, Publishing::new(Arc::clone(&own.rank), own.holder.scope, buckets));
        }
    }

    /// What was written of a rank no longer counts.
    fn retire(&mut self, id: HolderId) {
        if let Some(publishing) = self.ranks.remove(&id) {
            publishing.rank.retire();
            for (bucket, life) in self.buckets.iter_mut().zip(publishing.lives) {
                bucket.end(life);
            }
        }
    }

    async fn release(&self, holders: &[HolderId]) {
        if holders.is_empty() {
            return;
        }
        let mut call = RELEASE.on(self.shared.keys.list()).argument(self.shared.id.0.to_be_bytes());
        for holder in holders {
            call = call.argument(holder.0.to_be_bytes());
        }
        if let Err(error) = self.shared.link.call(&call, WRITE_DEADLINE).await {
            info!("the list of holders learns later that some are gone: {error}");
        }
    }

    async fn list(&self) -> Result<(), LinkError> {
        let known = self.shared.directory.load_full();
        let call = LIST.on(self.shared.keys.list()).argument(known.version.clone());
        let answer = self.shared.link.call(&call, WRITE_DEADLINE).await?;
        self.shared.directory.store(Arc::new(known.next(answer)?));
        Ok(())
    }

    /// Writes everything that has changed, and confirms what is there. The first error, if there was one.
    async fn cycle(&mut self, is_beat: bool) -> Option<LinkError> {
        let start = Instant::now();
        let (mut work, is_complete) = self.collect(start);
        let mut writing = JoinSet::new();
        let buckets = std::mem::take(&mut self.buckets);
        for (mut bucket, changes) in buckets.into_iter().zip(work.drain(..)) {
            let confirm = is_complete && (is_beat || bucket.needs_confirming(start));
            if changes.is_empty() && !confirm && !bucket.has_news() {
                self.buckets.push(bucket);
                continue;
            }
            let link = Arc::clone(&self.shared.link);
            writing.spawn(async move {
                let outcome = bucket.write(&link, changes, confirm.then_some(start)).await;
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

    /// Takes the changes of all ranks, by bucket; false if there are more.
    fn collect(&mut self, now: Instant) -> (Vec<Changes>, bool) {
        let mut work: Vec<Changes> = self.buckets.iter().map(|_| Changes::default()).collect();
        let (mut room, mut rest_room, mut is_complete) = (CYCLE_CHANGES_MAX, CYCLE_REST_MAX, true);
        let mut refreshing = self.ranks.values().any(|rank| !rank.is_whole());
        for (&holder, rank) in &mut self.ranks {
            if rank.life != Some(rank.rank.life()) {
                rank.start(holder, now, &mut self.buckets);
            }
            if !refreshing && rank.written_at + self.shared.times.refresh() < now {
                rank.refresh(now);
                refreshing = true;
            }
            let keys = &self.shared.keys;
            let taken = rank.take(room);
            is_complete &= !taken.has_more;
            room = room.saturating_sub(taken.changes.len());
            rank.sort(holder, keys, taken.changes, &mut work, false);
            let rest = rank.take_rest(rest_room);
            rest_room -= rest.len();
            rank.sort(holder, keys, rest, &mut work, rank.is_refreshing());
            rank.note_whole(&mut self.buckets);
        }
        (work, is_complete)
    }

    /// Takes a bucket back after writing to it.
    fn finish(&mut self, mut bucket: BucketWriter, outcome: Outcome) -> Option<LinkError> {
        let counts = &self.shared.counts;
        counts.batches.fetch_add(outcome.batches, Relaxed);
        counts.written.fetch_add(outcome.written, Relaxed);
        let error = match outcome.failed {
            None => None,
            Some(None) => {
                info!("a part of the store is not as it was left: it is written anew");
                counts.rewrites.fetch_add(1, Relaxed);
                bucket.restart();
                for (&holder, rank) in &mut self.ranks {
                    rank.restart_bucket(holder, &self.shared.keys, &mut bucket);
                }
                self.shared.changed.notify_one();
                None
            }
            Some(Some(error)) => {
                counts.failed_batches.fetch_add(1, Relaxed);
                for (holder, prefix) in outcome.unwritten {
                    if let Some(rank) = self.ranks.get(&holder) {
                        rank.give_back(prefix);
                    }
                }
                Some(error)
            }
        };
        self.buckets.push(bucket);
        error
    }

    /// Says what went wrong, once until it is something else.
    fn warn(&mut self, what: &str, error: &LinkError) {
        let warning = format!("{what}: {error}");
        if self.last_warning != warning {
            warn!("{warning}");
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
