//! Writer of one bucket: its session and its batches.

use flash_indexer_core::Tier;
use flash_indexer_core::prefixes::Prefix;
use redis::Value;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::time::Instant;

use super::clock::StoreClock;
use super::outage::Outage;
use super::{PublisherState, Timing, WRITE_DEADLINE, millis};
use crate::environment::Environment;
use crate::error::StoreError;
use crate::identity::HolderId;
use crate::keys::Bucket;
use crate::link::Link;
use crate::script::WRITE;

/// Changes in one batch. The store executes it in one or two milliseconds.
const BATCH_CHANGES_MAX: usize = 1_024;
/// Limit of the ended epochs that wait for an unavailable bucket; beyond it, the bucket is rewritten.
const ENDING_EPOCHS_MAX: usize = 1 << 16;
/// Tier byte of a prefix that is not held.
const NOT_HELD: u8 = 255;

/// One entry to be written or removed.
pub(super) struct Change {
    pub(super) holder: HolderId,
    pub(super) prefix: Prefix,
    pub(super) key: [u8; 8],
    pub(super) epoch: u64,
    pub(super) tier: Option<Tier>,
}

/// Changes of one bucket.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) changed: Vec<Change>,
    /// Entries that exist and are written again to extend their retention. Entries of dead epochs in the same keys are removed.
    pub(super) refreshed: Vec<Change>,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.refreshed.is_empty()
    }
}

/// Result of writing to a bucket.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) batches: u64,
    pub(super) written: u64,
    /// Reason why a batch was not written.
    pub(super) failed: Option<Failure>,
    pub(super) unwritten: Vec<(HolderId, Prefix)>,
}

/// Reason why a batch was not written.
#[derive(Debug)]
pub(super) enum Failure {
    /// The bucket lacks earlier writes of this replica.
    LostWrites,
    /// The bucket had values that no replica writes. They are removed together with the sessions of all publishers.
    InvalidValues(u64),
    /// The call of the store failed.
    Store(StoreError),
}

/// An epoch to be ended.
struct EpochEnd {
    epoch: u64,
    /// Holder that queries report as incomplete from then on.
    incomplete: Option<HolderId>,
}

pub(super) struct BucketWriter {
    bucket: Bucket,
    tables: [String; 3],
    blocks: String,
    timing: Timing,
    environment: Environment,
    session: u64,
    /// The previous session, to be ended.
    ended: Option<u64>,
    /// Range of the last batch number that the store may have: from the last confirmed to the last sent.
    confirmed: u64,
    sent: u64,
    clock: Option<StoreClock>,
    valid_since: Option<Instant>,
    /// The entries are valid until this moment at least.
    valid_until: Option<Instant>,
    starting: FxHashMap<u64, HolderId>,
    /// Epochs that the next batches mark as completely written.
    pub(super) whole: FxHashSet<u64>,
    ending: Vec<EpochEnd>,
    /// Retry state and waiting changes while the bucket is unavailable.
    pub(super) outage: Outage,
}

impl BucketWriter {
    pub(super) fn new(bucket: Bucket, shared: &PublisherState) -> Self {
        Self {
            bucket,
            tables: shared.keys.bucket_tables(bucket),
            blocks: shared.keys.blocks(bucket),
            timing: shared.timing,
            environment: shared.environment.clone(),
            session: shared.environment.random_id(),
            ended: None,
            confirmed: 0,
            sent: 0,
            clock: None,
            valid_since: None,
            valid_until: None,
            starting: FxHashMap::default(),
            whole: FxHashSet::default(),
            ending: Vec::new(),
            outage: Outage::default(),
        }
    }

    pub(super) fn bucket(&self) -> Bucket {
        self.bucket
    }

    /// Starts an epoch.
    pub(super) fn start(&mut self, epoch: u64, holder: HolderId) {
        self.starting.insert(epoch, holder);
    }

    /// Ends an epoch: its entries no longer count. Queries report `incomplete` until an epoch of this holder is
    /// completely written, or no replica lists the holder as completely written any more.
    pub(super) fn end(&mut self, epoch: u64, incomplete: Option<HolderId>) {
        if epoch == 0 {
            return;
        }
        self.whole.remove(&epoch);
        let is_unwritten = self.starting.remove(&epoch).is_some();
        // An epoch that was never written needs no end, unless a batch in flight may contain it.
        if !is_unwritten || self.sent > self.confirmed {
            self.ending.push(EpochEnd { epoch, incomplete });
            if self.ending.len() > ENDING_EPOCHS_MAX {
                self.outage.discard();
                self.ending.clear();
            }
        }
    }

    /// Makes queries report a holder whose epoch ended with its session as incomplete.
    pub(super) fn report_incomplete(&mut self, ended: u64, holder: HolderId) {
        if ended != 0 && self.ending.len() < ENDING_EPOCHS_MAX {
            self.ending.push(EpochEnd { epoch: ended, incomplete: Some(holder) });
        }
    }

    /// Whether epochs or sessions are to be written in addition to the changes.
    pub(super) fn has_control_changes(&self) -> bool {
        !self.starting.is_empty() || !self.whole.is_empty() || !self.ending.is_empty() || self.ended.is_some()
    }

    /// The moment until which the entries are valid at least; none while the bucket lacks changes that it did not accept.
    pub(super) fn confirmed_until(&self) -> Option<Instant> {
        let is_available = self.outage.retry_at().is_none() && !self.outage.needs_rewrite();
        self.valid_until.filter(|_| is_available)
    }

    pub(super) fn needs_confirming(&self, now: Instant) -> bool {
        self.valid_since.is_none_or(|since| since + self.timing.heartbeat() <= now)
    }

    /// Discards the session. The whole bucket is written again in a new one; earlier entries no longer count.
    pub(super) fn restart(&mut self) {
        self.ended = Some(std::mem::replace(&mut self.session, self.environment.random_id()));
        (self.confirmed, self.sent) = (0, 0);
        (self.clock, self.valid_since, self.valid_until) = (None, None, None);
        self.starting.clear();
        self.whole.clear();
        self.outage.reset();
    }

    /// Writes changes in batches. With `confirm`, the last batch confirms the state as of that moment.
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
            // The first response provides the store's clock.
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

    /// Checks whether the bucket accepts writes again; it is then rewritten.
    pub(super) async fn probe(&mut self, link: &Link) -> Outcome {
        let failed = self.send(link, &[], false, false, None).await.err().unwrap_or(Failure::LostWrites);
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
            // It is unknown whether the session has started: a new one is needed.
            return Err(Failure::LostWrites);
        }
        self.sent += 1;
        let confirmation =
            valid_from.zip(self.clock).map(|(from, clock)| (from, from + self.timing.time_to_live, clock));
        let valid_until = confirmation.map_or(0, |(_, until, clock)| clock.at(until));
        let whole: Vec<u8> = self.whole.iter().filter(|_| is_last).flat_map(|epoch| epoch.to_be_bytes()).collect();
        let starting =
            self.starting.iter().flat_map(|(epoch, HolderId(holder))| [epoch.to_be_bytes(), holder.to_be_bytes()]);
        let ending = self.ending.iter().flat_map(|EpochEnd { epoch, incomplete }| {
            [epoch.to_be_bytes(), incomplete.map_or([0; 8], |HolderId(holder)| holder.to_be_bytes())]
        });
        let call = WRITE
            .on(self.tables.clone())
            .argument(self.session.to_be_bytes())
            .number(low)
            .number(high)
            .number(self.sent)
            .number(valid_until)
            .number(millis(self.timing.retention))
            .number(millis(self.timing.session_removal()))
            .argument(self.blocks.as_str())
            .argument(self.ended.map(|ended| ended.to_be_bytes().to_vec()).unwrap_or_default())
            .argument(starting.flatten().collect::<Vec<u8>>())
            .argument(whole)
            .argument(ending.flatten().collect::<Vec<u8>>())
            .argument(encoded(batch))
            .argument(if is_refresh { "1" } else { "0" })
            .number(millis(self.timing.time_to_live));
        let sent_at = Instant::now();
        match link.call(&call, WRITE_DEADLINE).await {
            Ok(Value::Int(0)) => Err(Failure::LostWrites),
            Ok(Value::Int(removed)) if removed < 0 => Err(Failure::InvalidValues(removed.unsigned_abs())),
            Ok(Value::Int(now)) => {
                self.clock = Some(StoreClock::read(now.unsigned_abs(), sent_at));
                self.confirmed = self.sent;
                self.ended = None;
                self.starting.clear();
                self.ending.clear();
                if is_last {
                    self.whole.clear();
                }
                if let Some((from, until, clock)) = confirmation {
                    (self.valid_since, self.valid_until) = (Some(from), clock.is_before(until));
                }
                Ok(())
            }
            Ok(_) => Err(Failure::Store(StoreError::Protocol("unexpected reply to a batch"))),
            Err(error) => {
                if let StoreError::Unreachable(_) | StoreError::Busy(_) | StoreError::Moved(_) = error {
                    // No node has executed the batch.
                    self.sent = high;
                }
                Err(Failure::Store(error))
            }
        }
    }
}

fn encoded(batch: &[Change]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(batch.len() * 17);
    for Change { key, epoch, tier, .. } in batch {
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&epoch.to_be_bytes());
        bytes.push(tier.map_or(NOT_HELD, |tier| tier as u8));
    }
    bytes
}
