//! One published rank: its epochs, and the entries that remain to be written.

use std::sync::Arc;

use flash_indexer_core::Tier;
use flash_indexer_core::prefixes::Prefix;
use tokio::time::Instant;

use super::STEP_PREFIXES_MAX;
use super::bucket::{BucketWriter, Change, Changes};
use crate::environment::Environment;
use crate::identity::{HolderId, Scope};
use crate::keys::{Bucket, Keys};
use crate::rank_prefixes::{PrefixState, RankPrefixes};

pub(super) struct PublishedRank {
    pub(super) rank: Arc<RankPrefixes>,
    scope: Scope,
    /// Epoch of the rank that is being written.
    pub(super) epoch: Option<u64>,
    /// Whether this epoch has no entries because the rank is not published.
    is_withheld: bool,
    /// Epoch id in each bucket.
    pub(super) epochs: Vec<u64>,
    /// Buckets in which the rank is not completely written.
    unfinished: Vec<bool>,
    /// Buckets whose prefixes are still to be read from the rank.
    unread: Vec<bool>,
    /// Prefixes that were read and are still to be written.
    rest: Vec<Prefix>,
    /// Whether `rest` is already in the store and written again for retention only.
    pub(super) is_refresh: bool,
    /// Start of the last complete write.
    pub(super) written_at: Instant,
}

impl PublishedRank {
    pub(super) fn new(rank: Arc<RankPrefixes>, scope: Scope, buckets: usize) -> Self {
        Self {
            rank,
            scope,
            epoch: None,
            is_withheld: false,
            epochs: vec![0; buckets],
            unfinished: vec![true; buckets],
            unread: vec![false; buckets],
            rest: Vec::new(),
            is_refresh: false,
            written_at: Instant::now(),
        }
    }

    /// Starts new epochs and writes the rank completely, unless it is withheld.
    pub(super) fn start(
        &mut self,
        holder: HolderId,
        now: Instant,
        buckets: &mut [BucketWriter],
        environment: &Environment,
    ) {
        let (epoch, is_withheld) = self.rank.publish();
        (self.epoch, self.is_withheld) = (Some(epoch), is_withheld);
        for (epoch, bucket) in self.epochs.iter_mut().zip(buckets) {
            bucket.end(*epoch, Some(holder));
            *epoch = environment.random_id();
            bucket.start(*epoch, holder);
        }
        self.unfinished.fill(true);
        self.unread.fill(true);
        (self.rest, self.is_refresh, self.written_at) = (Vec::new(), false, now);
    }

    /// Writes the rank completely again, in the same epochs.
    pub(super) fn refresh(&mut self, now: Instant) {
        self.unread.fill(true);
        (self.is_refresh, self.written_at) = (true, now);
    }

    /// Starts a new epoch in a bucket that lost writes.
    pub(super) fn restart_bucket(&mut self, holder: HolderId, bucket: &mut BucketWriter, environment: &Environment) {
        let Bucket(at) = bucket.bucket();
        let at = usize::from(at);
        bucket.report_incomplete(self.epochs[at], holder);
        self.epochs[at] = environment.random_id();
        self.unfinished[at] = true;
        self.unread[at] = true;
        bucket.start(self.epochs[at], holder);
        self.is_refresh = false;
    }

    /// Reads the prefixes for a complete write, if one is pending. Returns the number of prefixes scanned. A rank of more
    /// than one step is read on a blocking thread.
    pub(super) async fn read_rest(&mut self, keys: &Keys, environment: &Environment) -> usize {
        if !self.unread.contains(&true) {
            return 0;
        }
        let unread = std::mem::replace(&mut self.unread, vec![false; self.epochs.len()]);
        let (rank, keys, scope) = (Arc::clone(&self.rank), keys.clone(), self.scope);
        let (held, mut rest) = (rank.held(), std::mem::take(&mut self.rest));
        let read = move || {
            let is_unread = |prefix: &Prefix| unread[usize::from(keys.bucket_of(scope, prefix.first).0)];
            rest.retain(|prefix| !is_unread(prefix));
            rest.extend(rank.all().into_iter().filter(is_unread));
            rest
        };
        if held <= STEP_PREFIXES_MAX {
            self.rest = read();
            return held;
        }
        match environment.run_blocking(read).await {
            Some(rest) => self.rest = rest,
            // The runtime is shutting down.
            None => self.unread.fill(true),
        }
        1
    }

    /// Whether nothing of the rank is left to be written.
    pub(super) fn is_whole(&self) -> bool {
        self.is_withheld || self.rest.is_empty() && !self.unread.contains(&true) && !self.unfinished.contains(&true)
    }

    /// Whether the rank was written to the store completely once.
    pub(super) fn is_written(&self) -> bool {
        !self.unfinished.contains(&true)
    }

    /// Takes at most this many changes of the rank, and whether there are more.
    pub(super) fn take(&self, max: usize) -> (Vec<PrefixState>, bool) {
        let taken = self.epoch.and_then(|epoch| self.rank.take(epoch, max));
        // The next flush starts a new epoch; until then nothing may be confirmed.
        taken.unwrap_or((Vec::new(), true))
    }

    /// Takes at most this many prefixes of `rest`. Returns the held ones, and the number taken.
    pub(super) fn take_rest(&mut self, max: usize) -> (Vec<PrefixState>, usize) {
        let from = self.rest.len().saturating_sub(max);
        let rest = self.rest.split_off(from);
        let mut held = self.read(&rest);
        held.retain(|state| state.tier.is_some());
        (held, rest.len())
    }

    /// Once `rest` is empty, marks the rank as completely written with the last batch of each bucket.
    pub(super) fn record_complete(&mut self, buckets: &mut [BucketWriter]) {
        if self.is_withheld || !self.rest.is_empty() || self.unread.contains(&true) {
            return;
        }
        for ((unfinished, epoch), bucket) in self.unfinished.iter_mut().zip(&self.epochs).zip(buckets) {
            if std::mem::take(unfinished) {
                bucket.whole.insert(*epoch);
            }
        }
    }

    /// Sorts changes into the work of their buckets.
    pub(super) fn sort(
        &self,
        holder: HolderId,
        keys: &Keys,
        changes: Vec<PrefixState>,
        work: &mut [Changes],
        is_refresh: bool,
    ) {
        for PrefixState { prefix, tier } in changes {
            let Bucket(at) = keys.bucket_of(self.scope, prefix.first);
            let at = usize::from(at);
            let change = self.change(holder, prefix, tier, at);
            if is_refresh { work[at].refreshed.push(change) } else { work[at].changed.push(change) }
        }
    }

    /// Adds changes to the work of one bucket.
    pub(super) fn add(&self, holder: HolderId, written: Vec<PrefixState>, at: usize, changes: &mut Changes) {
        changes
            .changed
            .extend(written.into_iter().map(|PrefixState { prefix, tier }| self.change(holder, prefix, tier, at)));
    }

    fn change(&self, holder: HolderId, prefix: Prefix, tier: Option<Tier>, at: usize) -> Change {
        Change { holder, prefix, key: Keys::block(self.scope, prefix.hash), epoch: self.epochs[at], tier }
    }

    /// Prefixes that were taken before, in their current state; none if their epoch has ended.
    pub(super) fn read(&self, prefixes: &[Prefix]) -> Vec<PrefixState> {
        self.epoch.and_then(|epoch| self.rank.read(epoch, prefixes)).unwrap_or_default()
    }
}
