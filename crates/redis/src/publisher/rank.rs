//! One rank that is published.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::prefixes::Prefix;

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
    /// What is still to be written as a whole.
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
            rest: Vec::new(),
            is_refresh: false,
            written_at: Instant::now(),
        }
    }

    /// Forgets what was written and begins to write all of it.
    pub(super) fn start(&mut self, holder: HolderId, now: Instant, buckets: &mut [BucketWriter]) {
        let (life, all) = self.rank.publish();
        self.life = Some(life);
        for (life, bucket) in self.lives.iter_mut().zip(buckets) {
            bucket.end(*life);
            *life = unique();
            bucket.start(*life, holder);
        }
        self.unfinished.fill(true);
        (self.rest, self.is_refresh, self.written_at) = (all, false, now);
    }

    /// Begins to write all of it again, beside what is there.
    pub(super) fn refresh(&mut self, now: Instant) {
        (self.rest, self.is_refresh, self.written_at) = (self.rank.all(), true, now);
    }

    /// A bucket has lost what was written.
    pub(super) fn restart_bucket(&mut self, holder: HolderId, keys: &Keys, bucket: &mut BucketWriter) {
        let Bucket(at) = bucket.bucket();
        self.lives[usize::from(at)] = unique();
        self.unfinished[usize::from(at)] = true;
        bucket.start(self.lives[usize::from(at)], holder);
        let all = self.rank.all().into_iter();
        self.rest.extend(all.filter(|prefix| keys.bucket_of(self.scope, prefix.first) == bucket.bucket()));
        self.is_refresh = false;
    }

    pub(super) fn is_whole(&self) -> bool {
        self.rest.is_empty() && !self.unfinished.contains(&true)
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

    pub(super) fn take_rest(&mut self, max: usize) -> Vec<Written> {
        let from = self.rest.len().saturating_sub(max);
        let rest = self.rest.split_off(from);
        self.life.and_then(|life| self.rank.read(life, &rest)).unwrap_or_default()
    }

    /// What is taken has been taken; when nothing is left, that is told with the last batch of each bucket.
    pub(super) fn note_whole(&mut self, buckets: &mut [BucketWriter]) {
        if !self.rest.is_empty() {
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
            let change =
                Change { holder, prefix, key: Keys::block(self.scope, prefix.hash), life: self.lives[at], tier };
            if is_refresh { work[at].refreshed.push(change) } else { work[at].changed.push(change) }
        }
    }

    pub(super) fn give_back(&self, prefix: Prefix) {
        if let Some(life) = self.life {
            self.rank.give_back(life, [prefix]);
        }
    }
}
