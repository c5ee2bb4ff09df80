//! Effects of a change on the index, on the rank's trust and on metrics.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use flash_indexer_core::groups::{GroupChange, GroupEvent, GroupedIndex, RankEvent};
use flash_indexer_core::{
    AppliedChanges, Block, BlockEvent, DpRank, HeldBlock, SequenceHash, SharedIndex, Tier, WorkerRank,
};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::{ClearCause, EventContext, LossReason};
use flash_indexer_wire::InferredLoss;

use super::Writer;
use crate::change::Change;
use crate::listener::Listener;

/// Reason label of stored blocks without tokens whose content is unknown.
const NO_TOKEN_IDS: &str = "no_token_ids";
/// Reason label of blocks of a cache group with smaller blocks than the registered ones. No event has shown the blocks
/// before them.
const PREVIOUS_BLOCK_UNKNOWN: &str = "previous_block_unknown";
/// Largest age of a batch whose timestamp is trusted. Replays return batches of days ago, never of months ago.
const TIMESTAMP_AGE_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Context of the changes of a batch, for explanations.
pub(super) struct Context {
    /// Time of the events, and why they remove blocks.
    event: EventContext,
    /// Why ranks are cleared.
    cause: ClearCause,
}

impl Context {
    pub(super) fn new(now: Instant) -> Self {
        Self { event: now.into(), cause: ClearCause::Service }
    }
}

/// A rank that is changed, in the index of its model.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) index: &'a GroupedIndex,
    pub(super) listener: &'a Arc<Listener>,
    pub(super) rank: WorkerRank,
}

/// Time of a timestamp in seconds since the Unix epoch, where `now` and `arrived_at` are the same moment. An engine's clock
/// can be wrong: a timestamp of the future, or one older than [`TIMESTAMP_AGE_MAX`], counts as `arrived_at`.
fn event_time(timestamp: f64, now: SystemTime, arrived_at: Instant) -> Instant {
    let stamp = Duration::try_from_secs_f64(timestamp).ok().and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
    let age = stamp.and_then(|stamp| now.duration_since(stamp).ok()).filter(|age| *age <= TIMESTAMP_AGE_MAX);
    age.and_then(|age| arrived_at.checked_sub(age)).unwrap_or(arrived_at)
}

impl Writer {
    /// Applies one change of a batch that was begun at `now`.
    pub(super) fn apply_change(
        &self,
        index: &GroupedIndex,
        listener: &Arc<Listener>,
        change: Change,
        now: Instant,
        context: &mut Context,
    ) {
        let target = |dp_rank| Target { index, listener, rank: listener.rank(dp_rank) };
        match change {
            Change::Event(dp_rank, event) => self.apply_events(target(dp_rank), event, context.event),
            Change::Refresh(dp_rank, event) => {
                for event in index.without_held(listener.rank(dp_rank), event) {
                    self.apply_events(target(dp_rank), event, context.event);
                }
            }
            Change::MoveLastCopy(dp_rank, event) => {
                if index.removes_several_copies(listener.rank(dp_rank), &event) {
                    let why = InferredLoss::MovedCopies.to_string();
                    self.reject_and_lose(listener, dp_rank, InferredLoss::MOVED_COPIES_UNKNOWN, why);
                }
                self.apply_event(target(dp_rank), &event, context.event);
            }
            Change::Cleared(dp_rank) => listener.cleared(dp_rank),
            Change::RecordLoss(dp_rank, why) => listener.record_loss(dp_rank, why),
            Change::RecordLossOfUnlisted(listed, why) => listener.record_loss_of_unlisted(listed, why),
            Change::Trust(trust) => listener.set_stream_trust(trust),
            Change::Pending(pending) => listener.set_pending(pending),
            Change::NoticesAcknowledged(kind, number) => listener.acknowledge_notices(kind, number),
            Change::Forget(dp_rank) => {
                listener.model.forget(index, listener.rank(dp_rank), context.cause, now);
                listener.set_waiting(dp_rank, 0);
            }
            Change::ParentSaltUnknown(dp_rank, parent) => {
                let rank = listener.rank(dp_rank);
                // A bounded index refuses blocks whose parent it has evicted.
                if !index.is_held(rank, parent) && !listener.model.is_partial(rank) {
                    listener.record_loss(Some(dp_rank), InferredLoss::ParentSalt.to_string());
                }
            }
            Change::CopySaltUnknown(dp_rank, blocks) => {
                let rank = listener.rank(dp_rank);
                if blocks.iter().any(|&block| !index.is_held(rank, block)) && !listener.model.is_partial(rank) {
                    listener.record_loss(Some(dp_rank), InferredLoss::CopySalt.to_string());
                }
            }
            Change::EntryOmitted(dp_rank) => index.record_partial(listener.rank(dp_rank)),
            Change::SaltedStore(dp_rank) => {
                if listener.waiting(dp_rank) > 0 {
                    listener.record_loss(Some(dp_rank), InferredLoss::SaltedStore.to_string());
                }
            }
            Change::ForgetCause(cause) => context.cause = cause,
            Change::EventTime(timestamp) => context.event.at = event_time(timestamp, self.clock.system_time(), now),
            Change::RemovalReason(reason) => context.event.removal = reason,
            Change::MessageApplied { sequence, timestamp } => {
                if let Some(timestamp) = timestamp {
                    self.metrics.observe_lag(timestamp, self.clock.system_time());
                }
                listener.message_applied(sequence, now);
                *context = Context::new(now);
            }
            Change::Resumed(dp_rank) => listener.resumed(dp_rank),
            Change::PositionImported(sequence) => listener.import_position(sequence),
            Change::Restarted => listener.finish_restart(),
            // Read by `apply_part`, in parts.
            Change::Read(_) => {}
        }
    }

    /// Applies an event. Blocks that a shared cache names by sequence hash alone are stored with the content that they have
    /// elsewhere in the index.
    fn apply_events(&self, target: Target<'_>, event: RankEvent, context: EventContext) {
        let Target { index, listener, rank } = target;
        match event {
            RankEvent::Primary(BlockEvent::Copied { tier, blocks }) if listener.instance.shared_cache().is_some() => {
                for event in with_contents(index, rank, tier, blocks) {
                    self.apply_event(target, &RankEvent::Primary(event), context);
                }
            }
            event => self.apply_event(target, &event, context),
        }
    }

    /// Applies an event, and records the losses that it shows.
    fn apply_event(&self, target: Target<'_>, event: &RankEvent, context: EventContext) {
        let Target { index, listener, rank } = target;
        let stored = match event {
            RankEvent::Primary(BlockEvent::Stored { blocks, .. }) => blocks.len(),
            RankEvent::Secondary(GroupChange { event: GroupEvent::Stored { blocks, .. }, .. }) => blocks.len(),
            _ => 0,
        };
        if stored > 0 && listener.model.is_full() {
            let refused = stored as u64;
            self.metrics.event_applied(event, &AppliedChanges { refused, ..AppliedChanges::default() });
            self.metrics.limit_reached_by(Limit::TenantHeldBlocks, refused);
            return listener.record_loss(Some(rank.dp_rank), LossReason::TenantHeldBlocks.to_string());
        }
        let applied = listener.model.write(index, rank, event, context);
        self.metrics.event_applied(event, &applied);
        listener.record_activity(rank.dp_rank, event, &applied);
        self.record_effects(target, event, &applied);
    }

    /// Records the losses that an applied event shows, and the blocks that wait for a parent.
    pub(super) fn record_effects(&self, target: Target<'_>, event: &RankEvent, applied: &AppliedChanges) {
        let Target { index, listener, rank: WorkerRank { dp_rank, .. } } = target;
        let (bound, why) = match event {
            RankEvent::Primary(_) if applied.moves_refused > 0 => (Limit::MovedBlocks, LossReason::MovedBlocks),
            RankEvent::Primary(_) if applied.twins_refused > 0 => (Limit::Twins, LossReason::Twins),
            RankEvent::Primary(_) => (Limit::WaitingBlocks, LossReason::WaitingBlocks),
            RankEvent::Secondary(_) | RankEvent::ClearedScope(_) => (Limit::CacheGroups, LossReason::CacheGroups),
        };
        if applied.refused > 0 {
            // A bounded index refuses blocks by design: its depths are too low then, and never wrong.
            let is_indexed = matches!(event, RankEvent::Primary(_));
            if !is_indexed || index.memory_limit().is_none() {
                self.metrics.limit_reached_by(bound, applied.refused);
                listener.record_loss(Some(dp_rank), why.to_string());
            }
        }
        match event {
            RankEvent::Primary(event) => self.record_unknown_blocks(target, event, applied),
            RankEvent::Secondary(GroupChange { group, event: GroupEvent::Stored { .. } | GroupEvent::Linked(_) })
                if applied.unknown > 0 =>
            {
                let (group, count) = (group.id.0, applied.unknown);
                let why = format!(
                    "{count} blocks of cache group {group} were stored, and no event has shown which blocks precede them: matches can be too short"
                );
                self.reject_and_lose(listener, dp_rank, PREVIOUS_BLOCK_UNKNOWN, why);
            }
            RankEvent::Secondary(_) | RankEvent::ClearedScope(_) => {}
        }
    }

    /// Records an event that could not be applied completely.
    fn reject_and_lose(&self, listener: &Listener, dp_rank: DpRank, reason: &'static str, why: String) {
        self.metrics.rejected(reason);
        listener.reject(reason, why.clone());
        listener.record_loss(Some(dp_rank), why);
    }

    /// Records blocks whose content or parent is unknown, as an event shows.
    fn record_unknown_blocks(&self, target: Target<'_>, event: &BlockEvent, applied: &AppliedChanges) {
        let Target { index, listener, rank } = target;
        let dp_rank = rank.dp_rank;
        // A bounded index may have evicted the content.
        if matches!(event, BlockEvent::Copied { .. }) && applied.unknown > 0 && !listener.model.is_partial(rank) {
            let why =
                format!("{} blocks were stored without token_ids, and their content is not known", applied.unknown);
            self.reject_and_lose(listener, dp_rank, NO_TOKEN_IDS, why);
        }
        let before = listener.waiting(dp_rank);
        if before == 0 && applied.waiting == 0 {
            return;
        }
        let now = index.size(rank).waiting;
        if applied.waiting_removed > 0 {
            listener.record_loss(Some(dp_rank), LossReason::ParentRemoved.to_string());
        }
        if now != before {
            listener.set_waiting(dp_rank, now);
            if before == 0 {
                self.waiting_ranks.borrow_mut().insert(listener, dp_rank);
            }
        }
    }
}

/// Events for blocks that are named by sequence hash alone: stores of blocks that another rank has stored and this one does
/// not hold, and copies of the others. Takes the lock of other writers' shards for each block.
fn with_contents(index: &GroupedIndex, rank: WorkerRank, tier: Tier, blocks: Vec<SequenceHash>) -> Vec<BlockEvent> {
    let mut events = Vec::new();
    let mut copied = Vec::new();
    for block in blocks {
        match index.find_block(block).filter(|_| !index.is_held(rank, block)) {
            Some(HeldBlock { sequence, parent, local, .. }) => {
                let blocks = vec![Block { sequence, local }];
                events.push(BlockEvent::Stored { tier, parent, blocks, copies: 1 });
            }
            None => copied.push(block),
        }
    }
    if !copied.is_empty() {
        events.push(BlockEvent::Copied { tier, blocks: copied });
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_trusted_unless_it_is_of_the_future_or_absurdly_old() {
        let (now, arrived_at) = (SystemTime::UNIX_EPOCH + 1_000 * TIMESTAMP_AGE_MAX, Instant::now());
        let seconds = 1_000.0 * TIMESTAMP_AGE_MAX.as_secs_f64();
        let age = |timestamp: f64| arrived_at - event_time(timestamp, now, arrived_at);
        assert_eq!(age(seconds - 90.0), Duration::from_secs(90));
        assert_eq!(age(seconds - TIMESTAMP_AGE_MAX.as_secs_f64()), TIMESTAMP_AGE_MAX);
        for wrong in [seconds + 1.0, 1.0, 0.0, -1.0, seconds - TIMESTAMP_AGE_MAX.as_secs_f64() - 1.0] {
            assert_eq!(age(wrong), Duration::ZERO, "{wrong}");
        }
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX] {
            assert_eq!(age(wrong), Duration::ZERO, "{wrong}");
        }
    }
}
