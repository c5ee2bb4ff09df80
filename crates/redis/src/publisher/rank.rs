//! One rank that is published.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::Tier;
use flash_indexer_core::prefixes::Prefix;

use super::STEP_PREFIXES_MAX;
use super::bucket::{BucketWriter, Change, Changes};
use crate::holder::{HolderId, Scope};
use crate::keys::{Bucket, Keys};
use crate::random::unique;
use crate::shared_rank::{SharedRank, Written};

pub(super) struct Publishing {
    pub(super) rank: Arc<SharedRank>,
    scope: Scope,
    /// Which life of the rank is written.
    pub(super) life: Option<u64>,
    /// What it is called in each bucket.
    pub(super) lives: Vec<u64>,
    /// Buckets where not all of it is written.
    unfinished: Vec<bool>,
    /// Buckets whose prefixes are still to be read from the rank.
    unread: Vec<bool>,
    /// Prefixes that were read and are still to be written.
    rest: Vec<Prefix>,
    /// Whether the rest is written already, and only to be kept.
    is_refresh: bool,
    /// When writing it as a whole was begun last.
    pub(super) written_at: Instant,
}

/// Changes of a rank.
pub(super) struct Taken {
    pub(super) changes: Vec<Written>,
    pub(super) has_more: bool,
}

impl Publishing {
    pub(super) fn new(rank: Arc<SharedRank>, scope: Scope, buckets: usize) -> Self {
        Self {
            rank,
            scope,
            life: None,
            lives: vec![0; buckets],
            unfinished: vec![true; buckets],
            unread: vec![false; buckets],
            rest: Vec::new(),
            is_refresh: false,
            written_at: Instant::now(),
        }
    }

    /// Forgets what was written and begins to write all of it.
    pub(super) fn start(&mut self, holder: HolderId, now: Instant, buckets: &mut [BucketWriter]) {
        self.life = Some(self.rank.publish());
        for (life, bucket) in self.lives.iter_mut().zip(buckets) {
            bucket.end(*life);
            *life = unique();
            bucket.start(*life, holder);
        }
        self.unfinished.fill(true);
        self.unread.fill(true);
        (self.rest, self.is_refresh, self.written_at) = (Vec::new(), false, now);
    }

    /// Begins to write all of it again, beside what is there.
    pub(super) fn refresh(&mut self, now: Instant) {
        self.unread.fill(true);
        (self.is_refresh, self.written_at) = (true, now);
    }

    /// A bucket has lost what was written.
    pub(super) fn restart_bucket(&mut self, holder: HolderId, bucket: &mut BucketWriter) {
        let Bucket(at) = bucket.bucket();
        self.lives[usize::from(at)] = unique();
        self.unfinished[usize::from(at)] = true;
        self.unread[usize::from(at)] = true;
        bucket.start(self.lives[usize::from(at)], holder);
        self.is_refresh = false;
    }

    /// Reads what is to be written as a whole, if that has not been done. Returns prefixes that were looked at on the
    /// way; a rank of more than one step is read on a thread that may block.
    pub(super) async fn read_rest(&mut self, keys: &Keys) -> usize {
        if !self.unread.contains(&true) {
            return 0;
        }
        let unread = std::mem::replace(&mut self.unread, vec![false; self.lives.len()]);
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
        match tokio::task::spawn_blocking(read).await {
            Ok(rest) => self.rest = rest,
            // The runtime ends: this is never written.
            Err(_) => self.unread.fill(true),
        }
        1
    }

    pub(super) fn is_whole(&self) -> bool {
        self.rest.is_empty() && !self.unread.contains(&true) && !self.unfinished.contains(&true)
    }

    pub(super) fn is_refreshing(&self) -> bool {
        self.is_refresh
    }

    pub(super) fn take(&self, max: usize) -> Taken {
        let taken = self.life.and_then(|life| self.rank.take(life, max));
        // Another life begins with the next cycle, which must come before anything is confirmed.
        let (changes, has_more) = taken.unwrap_or((Vec::new(), true));
        Taken { changes, has_more }
    }

    /// Takes at most this many prefixes of the rest. Returns those that are still held, and how many were taken.
    pub(super) fn take_rest(&mut self, max: usize) -> (Vec<Written>, usize) {
        let from = self.rest.len().saturating_sub(max);
        let rest = self.rest.split_off(from);
        (self.life.and_then(|life| self.rank.read(life, &rest)).unwrap_or_default(), rest.len())
    }

    /// What is taken has been taken; when nothing is left, that is told with the last batch of each bucket.
    pub(super) fn note_whole(&mut self, buckets: &mut [BucketWriter]) {
        if !self.rest.is_empty() || self.unread.contains(&true) {
            return;
        }
        for ((unfinished, life), bucket) in self.unfinished.iter_mut().zip(&self.lives).zip(buckets) {
            if std::mem::take(unfinished) {
                bucket.whole(*life);
            }
        }
    }

    /// Puts changes where they belong.
    pub(super) fn sort(
        &self,
        holder: HolderId,
        keys: &Keys,
        changes: Vec<Written>,
        work: &mut [Changes],
        is_refresh: bool,
    ) {
        for Written { prefix, tier } in changes {
            let Bucket(at) = keys.bucket_of(self.scope, prefix.first);
            let at = usize::from(at);
            let change = self.change(holder, prefix, tier, at);
            if is_refresh { work[at].refreshed.push(change) } else { work[at].changed.push(change) }
        }
    }

    /// Adds changes of one bucket to those of its next batches.
    pub(super) fn add(&self, holder: HolderId, written: Vec<Written>, at: usize, changes: &mut Changes) {
        changes
            .changed
            .extend(written.into_iter().map(|Written { prefix, tier }| self.change(holder, prefix, tier, at)));
    }

    fn change(&self, holder: HolderId, prefix: Prefix, tier: Option<Tier>, at: usize) -> Change {
        Change { holder, prefix, key: Keys::block(self.scope, prefix.hash), life: self.lives[at], tier }
    }

    /// Changes that were taken before, as they are now; none of a life that has ended.
    pub(super) fn reread(&self, prefixes: &[Prefix]) -> Vec<Written> {
        self.life.and_then(|life| self.rank.reread(life, prefixes)).unwrap_or_default()
    }
}
