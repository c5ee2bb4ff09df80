//! One bucket as this replica believes it to be, and its batches.

use std::time::Instant;

use flash_indexer_core::Tier;
use flash_indexer_core::prefixes::Prefix;
use redis::Value;
use rustc_hash::{FxHashMap, FxHashSet};

use super::outage::Outage;
use super::{Shared, Times, WRITE_DEADLINE, millis};
use crate::holder::HolderId;
use crate::keys::Bucket;
use crate::link::{Link, StoreError};
use crate::random::unique;
use crate::script::WRITE;

/// Changes in one batch: the store does nothing else for a millisecond or two.
const BATCH_CHANGES_MAX: usize = 1_024;
/// Ended lives that wait to be removed from a bucket that cannot be written; with more, it is written as a whole.
const ENDING_LIVES_MAX: usize = 1 << 16;
/// Says in a batch that a prefix is not held.
const NOT_HELD: u8 = 255;

/// One entry to be written or taken out.
pub(super) struct Change {
    pub(super) holder: HolderId,
    pub(super) prefix: Prefix,
    pub(super) key: [u8; 8],
    pub(super) life: u64,
    pub(super) tier: Option<Tier>,
}

/// What is to be written to one bucket.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) changed: Vec<Change>,
    /// Entries that are there, to be kept for longer; what is dead beside them is dropped.
    pub(super) refreshed: Vec<Change>,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.refreshed.is_empty()
    }
}

/// What became of it.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) batches: u64,
    pub(super) written: u64,
    /// Why not all was written.
    pub(super) failed: Option<Failure>,
    pub(super) unwritten: Vec<(HolderId, Prefix)>,
}

/// Why a batch was not written.
#[derive(Debug)]
pub(super) enum Failure {
    /// The bucket is not as this replica left it.
    NotAsLeft,
    /// The bucket had values that are none of ours. They are removed, and the sessions of all publishers with them.
    InvalidValues(u64),
    /// The store was not asked, or did not do as asked.
    Link(StoreError),
}

/// The store's clock, as it was when it answered.
#[derive(Clone, Copy)]
struct Clock {
    millis: u64,
    at: Instant,
}

impl Clock {
    /// What the store's clock showed at this moment, or a little less.
    fn at(self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.at);
        let before = self.at.saturating_duration_since(moment);
        (self.millis + millis(since)).saturating_sub(millis(before))
    }
}

pub(super) struct BucketWriter {
    bucket: Bucket,
    tables: [String; 2],
    blocks: String,
    times: Times,
    session: u64,
    /// A session before this one, to be ended.
    ended: Option<u64>,
    /// Numbers that the last batch in the store may have: the last that was confirmed to those that were sent.
    confirmed: u64,
    sent: u64,
    clock: Option<Clock>,
    valid_since: Option<Instant>,
    starting: FxHashMap<u64, HolderId>,
    whole: FxHashSet<u64>,
    ending: Vec<u64>,
    /// What waits while the bucket cannot be written.
    pub(super) outage: Outage,
}

impl BucketWriter {
    pub(super) fn new(bucket: Bucket, shared: &Shared) -> Self {
        Self {
            bucket,
            tables: shared.keys.bucket_tables(bucket),
            blocks: shared.keys.blocks(bucket),
            times: shared.times,
            session: unique(),
            ended: None,
            confirmed: 0,
            sent: 0,
            clock: None,
            valid_since: None,
            starting: FxHashMap::default(),
            whole: FxHashSet::default(),
            ending: Vec::new(),
            outage: Outage::default(),
        }
    }

    pub(super) fn bucket(&self) -> Bucket {
        self.bucket
    }

    /// A life begins.
    pub(super) fn start(&mut self, life: u64, holder: HolderId) {
        self.starting.insert(life, holder);
    }

    /// All of a life will be written with the next batches.
    pub(super) fn whole(&mut self, life: u64) {
        self.whole.insert(life);
    }

    /// A life no longer counts.
    pub(super) fn end(&mut self, life: u64) {
        if life == 0 {
            return;
        }
        self.whole.remove(&life);
        let is_unwritten = self.starting.remove(&life).is_some();
        // A life that was never written needs no end, unless a batch with it may be under way.
        if !is_unwritten || self.sent > self.confirmed {
            self.ending.push(life);
            if self.ending.len() > ENDING_LIVES_MAX {
                self.outage.give_up();
                self.ending.clear();
            }
        }
    }

    /// Whether something is to be told that is no change.
    pub(super) fn has_news(&self) -> bool {
        !self.starting.is_empty() || !self.whole.is_empty() || !self.ending.is_empty() || self.ended.is_some()
    }

    pub(super) fn needs_confirming(&self, now: Instant) -> bool {
        self.valid_since.is_none_or(|since| since + self.times.beat() <= now)
    }

    /// Everything is to be written anew, in a session of its own: nothing that was there before counts.
    pub(super) fn restart(&mut self) {
        self.ended = Some(std::mem::replace(&mut self.session, unique()));
        (self.confirmed, self.sent, self.clock, self.valid_since) = (0, 0, None, None);
        self.starting.clear();
        self.whole.clear();
        self.ending.clear();
        self.outage.restart();
    }

    /// Writes changes in batches; the last one confirms what was true at a moment, if it is to.
    pub(super) async fn write(&mut self, link: &Link, changes: Changes, confirm: Option<Instant>) -> Outcome {
        let Changes { changed, refreshed } = changes;
        let mut outcome = Outcome::default();
        let batches = changed.chunks(BATCH_CHANGES_MAX).map(|batch| (batch, false));
        let mut batches: Vec<_> =
            batches.chain(refreshed.chunks(BATCH_CHANGES_MAX).map(|batch| (batch, true))).collect();
        if batches.is_empty() {
            batches.push((&[], false));
        }
        if self.clock.is_none() && confirm.is_some() {
            // The store's clock comes with its first answer.
            batches.push((&[], false));
        }
        let last = batches.len() - 1;
        for (at, &(batch, is_refresh)) in batches.iter().enumerate() {
            let valid_from = confirm.filter(|_| at == last);
            match self.send(link, batch, is_refresh, at == last, valid_from).await {
                Ok(()) => {
                    outcome.batches += 1;
                    outcome.written += batch.len() as u64;
                }
                Err(failed) => {
                    outcome.failed = Some(failed);
                    let unwritten = batches[at..].iter().flat_map(|(batch, _)| batch.iter());
                    outcome.unwritten = unwritten.map(|change| (change.holder, change.prefix)).collect();
                    break;
                }
            }
        }
        outcome
    }

    /// Finds out whether the bucket can be written again, to be written as a whole then.
    pub(super) async fn probe(&mut self, link: &Link) -> Outcome {
        let failed = self.send(link, &[], false, false, None).await.err().unwrap_or(Failure::NotAsLeft);
        Outcome { failed: Some(failed), ..Outcome::default() }
    }

    async fn send(
        &mut self,
        link: &Link,
        batch: &[Change],
        is_refresh: bool,
        is_last: bool,
        valid_from: Option<Instant>,
    ) -> Result<(), Failure> {
        let (low, high) = (self.confirmed, self.sent);
        if low == 0 && high > 0 {
            // Whether the session has begun is not known: another one does.
            return Err(Failure::NotAsLeft);
        }
        self.sent += 1;
        let valid_until =
            valid_from.zip(self.clock).map_or(0, |(from, clock)| clock.at(from) + millis(self.times.to_live));
        let whole: Vec<u8> = self.whole.iter().filter(|_| is_last).flat_map(|life| life.to_be_bytes()).collect();
        let starting =
            self.starting.iter().flat_map(|(life, HolderId(holder))| [life.to_be_bytes(), holder.to_be_bytes()]);
        let call = WRITE
            .on(self.tables.clone())
            .argument(self.session.to_be_bytes())
            .number(low)
            .number(high)
            .number(self.sent)
            .number(valid_until)
            .number(millis(self.times.keep))
            .number(millis(self.times.forget()))
            .argument(self.blocks.as_str())
            .argument(self.ended.map(|ended| ended.to_be_bytes().to_vec()).unwrap_or_default())
            .argument(starting.flatten().collect::<Vec<u8>>())
            .argument(whole)
            .argument(self.ending.iter().flat_map(|life| life.to_be_bytes()).collect::<Vec<u8>>())
            .argument(encoded(batch))
            .argument(if is_refresh { "1" } else { "0" });
        match link.call(&call, WRITE_DEADLINE).await {
            Ok(Value::Int(0)) => Err(Failure::NotAsLeft),
            Ok(Value::Int(removed)) if removed < 0 => Err(Failure::InvalidValues(removed.unsigned_abs())),
            Ok(Value::Int(now)) => {
                self.clock = Some(Clock { millis: now.unsigned_abs(), at: Instant::now() });
                self.confirmed = self.sent;
                self.ended = None;
                self.starting.clear();
                self.ending.clear();
                if is_last {
                    self.whole.clear();
                }
                if valid_until > 0 {
                    self.valid_since = valid_from;
                }
                Ok(())
            }
            Ok(_) => Err(Failure::Link(StoreError::Protocol("an answer to a batch"))),
            Err(error) => {
                if let StoreError::Unreachable(_) | StoreError::Busy(_) | StoreError::Moved(_) = error {
                    // No node has run it.
                    self.sent = high;
                }
                Err(Failure::Link(error))
            }
        }
    }
}

fn encoded(batch: &[Change]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(batch.len() * 17);
    for Change { key, life, tier, .. } in batch {
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&life.to_be_bytes());
        bytes.push(tier.map_or(NOT_HELD, |tier| tier as u8));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_stores_clock_is_never_guessed_too_late() {
        let now = Instant::now();
        let clock = Clock { millis: 1_000_000, at: now };
        assert_eq!(clock.at(now + Duration::from_millis(1_500)), 1_001_500);
        assert_eq!(clock.at(now - Duration::from_millis(1_500)), 998_500, "a moment before the answer");
    }
}
