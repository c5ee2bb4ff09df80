//! A listener's decoder: turns the messages of one stream into changes for its model's writer.

mod events;
mod handover;
mod notes;
mod numbering;
mod readings;
mod restarts;
mod unknown_fields;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::DpRank;
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use flash_indexer_types::logs::Repeats;
use flash_indexer_types::{ClearCause, ConnectionStatus, EngineKind, LossReason};
use flash_indexer_wire::{
    Action, BatchOutline, ClearReason, EngineAdapter, Numbering, ReplayReply, ReplaySupport, Stream, StreamLimits,
    StreamOptions, StreamPosition, StreamTrust, TopicNames, Translator,
};
use rustc_hash::FxHashMap;
use tracing::Span;

use self::readings::PendingRead;
use self::unknown_fields::UnknownFields;
use super::bound_pods::Seen;
use super::change::Change;
use super::listener::{Listener, NoticeKind};
use super::message::{Live, Message};
use crate::log_listener;

/// Block size of the engine, compared with its registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SeenBlockSize {
    /// The engine has not restarted since its block size was confirmed.
    Unchanged,
    /// The engine has restarted, and has stored no block since.
    AfterRestart,
    /// The first stored event of the epoch has another block size, in tokens. Or a pod, registered with the size of its
    /// first store, has larger blocks: that store was a partial entry.
    Changed(u32),
}

/// Decoder of one listener's stream. Its changes are collected until the caller takes them.
pub(super) struct ListenerDecoder {
    listener: Arc<Listener>,
    metrics: Arc<Metrics>,
    adapter: EngineAdapter,
    stream: Stream<Message>,
    numbering: Numbering,
    translators: FxHashMap<DpRank, Translator>,
    /// Ranks whose blocks the index may hold through this stream.
    ranks: BTreeSet<DpRank>,
    /// Whether the loss of a refused rank was recorded since the trust state of all ranks was set.
    has_refused_rank: bool,
    /// Ranks that were unregistered while other ranks of the stream were not.
    ignored_ranks: BTreeSet<DpRank>,
    /// Sequence number of the last message in the imported state of each rank.
    imported: FxHashMap<DpRank, u64>,
    /// Ranks whose state was imported without a stream position.
    without_position: BTreeSet<DpRank>,
    /// Ranks whose state was imported without cache groups.
    groups_unknown: BTreeSet<DpRank>,
    /// Ranks that are degraded because none of their cache groups publishes the contents of blocks.
    ranks_without_content: BTreeSet<DpRank>,
    /// Read of a rank at a later message.
    pending_read: Option<PendingRead>,
    /// Acknowledgements of notices, kept until the actions that the notices caused are executed.
    acknowledgements: Vec<Change>,
    /// Changes that follow the next `Change::Trust`, which sets the trust state of all ranks.
    changes_after_trust: Vec<Change>,
    hybrid_reported: bool,
    unknown_fields: UnknownFields,
    repeated_gaps: Repeats,
    repeated_rejections: Repeats,
    repeated_replays: Repeats,
    repeated_ends: Repeats,
    block_size: SeenBlockSize,
    /// The largest size to which the blocks of a pod have grown, in tokens: a new registration is requested once for each.
    grown_to: u32,
    /// Whether it replaces a decoder whose state was lost.
    has_restarted: bool,
    changes: Vec<Change>,
    /// Span of the running replay; disabled while none runs.
    replay_span: Span,
    /// Bytes of the messages that `changes` stem from.
    pub(super) changed_bytes: usize,
    /// Bytes that may be decoded before other queues take their turns.
    pub(super) turn_bytes_left: usize,
    /// Message that the end of a turn interrupted.
    partly_applied: Option<PartialMessage>,
    /// Whether work to resume it is queued.
    pub(super) is_rest_queued: bool,
}

/// A partly applied message.
struct PartialMessage {
    sequence: u64,
    message: Message,
    /// Remaining events and their rank; none before the first part.
    rest: Option<(DpRank, BatchOutline)>,
}

impl ListenerDecoder {
    pub(super) fn new(listener: Arc<Listener>, metrics: Arc<Metrics>) -> Self {
        let replay = listener.options.replay();
        let mut decoder = Self::with_replay(listener, metrics, replay);
        if let Some(position) = decoder.listener.resume_from {
            decoder.stream.continue_epochs(position);
        }
        decoder
    }

    fn with_replay(listener: Arc<Listener>, metrics: Arc<Metrics>, replay: ReplaySupport) -> Self {
        let options = StreamOptions { replay, start: listener.start, limits: StreamLimits::default() };
        let mut stream = Stream::new(options);
        // Continues the attempts of an earlier decoder whose state was lost.
        stream.continue_attempts(listener.last_attempt());
        Self {
            // For an engine without events, of any kind, the service creates the messages.
            adapter: EngineKind::adapter(listener.options.engine.filter(|_| listener.options.has_events())),
            listener,
            metrics,
            stream,
            numbering: Numbering::Unknown,
            translators: FxHashMap::default(),
            ranks: BTreeSet::new(),
            has_refused_rank: false,
            ignored_ranks: BTreeSet::new(),
            imported: FxHashMap::default(),
            without_position: BTreeSet::new(),
            groups_unknown: BTreeSet::new(),
            ranks_without_content: BTreeSet::new(),
            pending_read: None,
            acknowledgements: Vec::new(),
            changes_after_trust: Vec::new(),
            hybrid_reported: false,
            unknown_fields: UnknownFields::new(),
            repeated_gaps: Repeats::default(),
            repeated_rejections: Repeats::default(),
            repeated_replays: Repeats::default(),
            repeated_ends: Repeats::default(),
            block_size: SeenBlockSize::Unchanged,
            grown_to: 0,
            has_restarted: false,
            changes: Vec::new(),
            replay_span: Span::none(),
            changed_bytes: 0,
            turn_bytes_left: usize::MAX,
            partly_applied: None,
            is_rest_queued: false,
        }
    }

    pub(super) fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    /// Next deadline of the stream.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        self.stream.wakes_at()
    }

    /// Bytes of messages that are buffered after gaps.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.stream.waiting_bytes()
    }

    /// Bytes of the copies of blocks with a named manager, of all ranks.
    pub(super) fn managed_bytes(&self) -> usize {
        self.translators.values().map(Translator::managed_bytes).sum()
    }

    /// Forgets the managers of all ranks' copies.
    pub(super) fn forget_managers(&mut self) {
        for translator in self.translators.values_mut().filter(|translator| translator.managed_bytes() > 0) {
            translator.forget_managers();
            self.metrics.limit_reached(Limit::ManagedCopies);
        }
    }

    /// Takes the collected changes.
    pub(super) fn changes(&mut self) -> Vec<Change> {
        self.changed_bytes = 0;
        std::mem::take(&mut self.changes)
    }

    /// Takes the engine's block size, if it has restarted with another one.
    pub(super) fn take_changed_block_size(&mut self) -> Option<u32> {
        let SeenBlockSize::Changed(tokens) = self.block_size else { return None };
        self.block_size = SeenBlockSize::Unchanged;
        Some(tokens)
    }

    pub(super) fn connected(&mut self, now: Instant) {
        self.stream.connected(now);
        self.execute();
    }

    pub(super) fn disconnected(&mut self) {
        // If the decoder numbers the messages, the next one begins an epoch: the engine may be another one.
        self.numbering = Numbering::Unknown;
        self.stream.disconnected();
        self.execute();
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.stream.tick(now);
        self.execute();
    }

    pub(super) fn release_buffered(&mut self, now: Instant) {
        self.stream.release_buffered(now);
        self.execute();
    }

    /// Decodes a live message.
    pub(super) fn live(&mut self, frames: Vec<Vec<u8>>, now: Instant) {
        #[cfg(any(test, feature = "fault-injection"))]
        assert!(frames[0] != FAULT, "a test asked for a failure");
        self.metrics.message_received();
        let is_of_other = frames.len() == LIVE_FRAMES && self.is_of_other_cache(&frames[0]);
        match Live::from_frames(frames) {
            Ok(live) if is_of_other => {
                self.receive_live(Live { message: live.message.without_events(), ..live }, now);
            }
            Ok(live) => self.receive_live(live, now),
            Err(error) => {
                self.reject(error.reason(), error.to_string());
                // It may have been the stream's next message.
                self.tail_lost(error.sequence(), now);
            }
        }
    }

    /// Records that messages after the last live one were lost before they were decoded. `last` is the highest sequence
    /// number that was seen on one of them, if any.
    pub(super) fn tail_lost(&mut self, last: Option<u64>, now: Instant) {
        self.stream.tail_lost(last, now);
        self.execute();
    }

    /// Records a run of messages that were dropped before they reached the decoder.
    pub(super) fn dropped(&mut self, run: u64, last: Option<u64>, now: Instant) {
        self.acknowledgements.push(Change::NoticesAcknowledged(NoticeKind::Dropped, run));
        self.tail_lost(last, now);
    }

    /// Records a run of messages that the engine may have dropped while this process stood still.
    pub(super) fn paused(&mut self, run: u64, shown_from: Instant, now: Instant) {
        self.acknowledgements.push(Change::NoticesAcknowledged(NoticeKind::Dropped, run));
        self.stream.tail_unverified(shown_from, now);
        self.execute();
    }

    /// Handles the notice of a lost connection.
    pub(super) fn connection_lost(&mut self, number: u64) {
        self.acknowledgements.push(Change::NoticesAcknowledged(NoticeKind::Disconnected, number));
        self.disconnected();
    }

    /// Handles the notice of a lost connection of the bound socket over which the engine does not publish any more.
    pub(super) fn former_connection_lost(&mut self, number: u64) {
        self.acknowledgements.push(Change::NoticesAcknowledged(NoticeKind::Disconnected, number));
        self.execute();
    }

    /// Decodes a live message of the bound socket, where only messages show whether the engine is connected.
    pub(super) fn receive_routed(&mut self, seen: Seen, live: Live, now: Instant) {
        match seen {
            Seen::Same => {}
            Seen::Reconnected => {
                if self.listener.connection() == ConnectionStatus::Connected {
                    self.disconnected();
                }
                self.listener.set_connection(ConnectionStatus::Connected);
                self.connected(now);
            }
            Seen::Duplicate => {
                let why = "two engines publish under the pod's name: only the one that connected last is applied; give each pod a name of its own";
                self.reject("duplicate_pod", why.to_owned());
                return self.changes.push(Change::RecordLoss(Some(self.listener.dp_rank), why.to_owned()));
            }
        }
        self.receive_live(live, now);
    }

    /// Passes a parsed live message to the stream.
    fn receive_live(&mut self, live: Live, now: Instant) {
        let Some(sequence) = self.number(live.sequence) else {
            let why = "some messages of the stream have sequence numbers, and some have none";
            self.reject("bad_frames", why.to_owned());
            self.tail_lost(None, now);
            // The next number and a replay do not show what it changed.
            return self.changes.push(Change::RecordLoss(None, why.to_owned()));
        };
        self.listener.record_received(sequence);
        self.stream.live(sequence, live.message, now);
        self.execute();
    }

    /// Decodes one message of a replay.
    pub(super) fn replayed(&mut self, attempt: u32, frames: Vec<Vec<u8>>, now: Instant) {
        let _span = self.replay_span.clone().entered();
        match ReplayReply::from_frames(&frames) {
            Ok(ReplayReply::Message { topic, sequence, .. }) => {
                self.metrics.message_replayed();
                let is_of_other = self.is_of_other_cache(topic);
                let message = Message::from_frames(frames);
                let message = if is_of_other { message.without_events() } else { message };
                self.stream.replayed(attempt, sequence, message, now);
            }
            Ok(ReplayReply::End) => self.stream.replay_ended(attempt, now),
            Err(error) => {
                self.reject("bad_replay", error.to_string());
                self.stream.replay_failed(attempt, now);
            }
        }
        self.execute();
    }

    /// Whether a message is of another shared cache. A publisher may publish for several, each under its own topic, with one
    /// sequence of numbers for all of them.
    fn is_of_other_cache(&self, topic: &[u8]) -> bool {
        if self.listener.instance.shared_cache().is_none() {
            return false;
        }
        let Ok(TopicNames { pod, model: Some(model) }) = TopicNames::of(topic) else { return false };
        pod != self.listener.instance.as_key() || model != self.listener.model.key().model_name
    }

    /// Records that a replay request failed.
    pub(super) fn replay_failed(&mut self, attempt: u32, why: String, now: Instant) {
        self.reject("bad_replay", why);
        self.stream.replay_failed(attempt, now);
        self.execute();
    }

    /// Ignores a rank, and removes its blocks.
    pub(super) fn ignore_rank(&mut self, dp_rank: DpRank) {
        self.ignored_ranks.insert(dp_rank);
        // Another stream may take the rank: from now on this one does not remove its blocks.
        self.ranks.remove(&dp_rank);
        self.translators.remove(&dp_rank);
        self.groups_unknown.remove(&dp_rank);
        self.ranks_without_content.remove(&dp_rank);
        self.changes.push(Change::Forget(dp_rank));
    }

    /// Applies the events of an ignored rank again. The rank is degraded, because events were skipped.
    pub(super) fn resume_rank(&mut self, dp_rank: DpRank) {
        if self.ignored_ranks.remove(&dp_rank) {
            self.changes.push(Change::RecordLoss(Some(dp_rank), LossReason::Skipped.to_string()));
        }
        self.changes.push(Change::Resumed(dp_rank));
    }

    /// Removes the blocks of all ranks. Returns the position of the stream.
    pub(super) fn retire(&mut self) -> StreamPosition {
        self.listener.cancel_replay();
        self.ranks.extend(self.listener.hold().ranks());
        if !self.ignored_ranks.contains(&self.listener.dp_rank) {
            self.ranks.insert(self.listener.dp_rank);
        }
        self.forget_ranks();
        self.stream.position()
    }

    /// Clears the decoder state of all ranks, and removes their blocks.
    fn forget_ranks(&mut self) {
        self.translators.clear();
        self.imported.clear();
        self.without_position.clear();
        self.groups_unknown.clear();
        self.ranks_without_content.clear();
        self.pending_read = None;
        self.changes.extend(self.ranks.iter().copied().map(Change::Forget));
    }

    /// Whether the end of a turn interrupted a message. Its changes are complete only after it.
    pub(super) fn is_interrupted(&self) -> bool {
        self.partly_applied.is_some()
    }

    /// Executes the actions that the stream requests, until the turn ends, or continues with those that the end of a turn
    /// interrupted. Inputs of an interrupted stream are handled after the message that was interrupted.
    pub(super) fn execute(&mut self) {
        loop {
            if let Some(current) = self.partly_applied.take() {
                let sequence = current.sequence;
                self.partly_applied = self.apply_part(current);
                if self.partly_applied.is_some() {
                    return;
                }
                self.run_pending_read(sequence);
            }
            let Some(action) = self.stream.next_action() else {
                return self.changes.append(&mut self.acknowledgements);
            };
            match action {
                Action::Apply { sequence, payload } => {
                    self.partly_applied = Some(PartialMessage { sequence, message: payload, rest: None });
                }
                Action::RequestReplay { attempt, from } => self.listener.request_replay(attempt, from),
                Action::CloseReplay => self.listener.cancel_replay(),
                Action::Clear(why) => {
                    log_listener!(info, self.listener, why = why.as_str(), "removing the blocks of the stream's ranks");
                    if why == ClearReason::Restarted {
                        self.metrics.engine_restarted();
                        self.block_size = SeenBlockSize::AfterRestart;
                    }
                    self.changes.push(Change::ForgetCause(ClearCause::Stream(why)));
                    self.forget_ranks();
                }
                Action::Trust(trust) => {
                    if let StreamTrust::Degraded(why) = trust
                        && !self.listener.is_degraded()
                    {
                        // Logged once for each change to degraded: a stream with many losses would fill the log.
                        log_listener!(warn, self.listener, %why, "rank degraded: messages were lost");
                    }
                    self.has_refused_rank = false;
                    self.changes.push(Change::Trust(trust));
                    // It sets all ranks alike: the next batch has to degrade ranks without content again.
                    self.ranks_without_content.clear();
                    self.changes.append(&mut self.changes_after_trust);
                }
                Action::Pending(pending) => self.changes.push(Change::Pending(pending)),
                Action::Record(note) => self.note(note),
            }
        }
    }
}

/// Frames of a live message with a topic and a sequence number.
const LIVE_FRAMES: usize = 3;

/// Topic by which a test injects a panic into the decoder.
#[cfg(any(test, feature = "fault-injection"))]
const FAULT: &[u8] = b"fault";

#[cfg(test)]
mod tests {
    use flash_indexer_types::Trust;

    use super::*;
    use crate::tests::fixture::{Fixture, RANK, payload};

    #[test]
    fn a_panic_in_one_listener_restarts_its_stream_and_no_other() {
        let fixture = Fixture::start(3, true);
        let engines = &fixture.engines;
        engines[1].publish_frames(&[FAULT, &1_u64.to_be_bytes(), &payload(2)]).expect("published");
        engines[1].publish(2, &payload(3)).expect("published");
        fixture.wait(1, 2, Trust::Degraded);
        for at in [0, 2] {
            engines[at].publish(1, &payload(2)).expect("published");
            fixture.wait(at, 1, Trust::Exact);
        }
        assert_eq!(fixture.listener(1).report(RANK).rejected.get("panicked"), Some(&1));
        assert_eq!(fixture.held_blocks(), 2 + 1 + 2, "the blocks of the failed listener are removed");
    }

    #[test]
    fn a_stream_whose_message_caused_a_panic_requests_no_replay_after_a_later_restart() {
        let fixture = Fixture::start(1, true);
        let (engine, listener) = (&fixture.engines[0], fixture.listener(0));
        // A replay would return another message in its place and make the rank exact.
        engine.keep(1, &payload(2));
        engine.publish_frames(&[FAULT, &1_u64.to_be_bytes(), &payload(2)]).expect("published");
        engine.publish(2, &payload(3)).expect("published");
        fixture.wait(0, 2, Trust::Degraded);
        listener.require_restart(LossReason::IndexStartedOver);
        fixture.decoders.restart_streams([Arc::clone(&listener)], None);
        engine.publish(3, &payload(4)).expect("published");
        fixture.wait(0, 3, Trust::Degraded);
        assert_eq!(fixture.held_blocks(), 1, "only the message after the restart is applied");
    }
}
