//! One listener's messages, decoded into changes for its model's writer.

mod events;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::DpRank;
use flash_indexer_wire::{
    Action, EngineAdapter, Forgotten, Note, Replay, ReplayReply, Stream, StreamLimits, StreamOptions, StreamPosition,
    StreamTrust, Translator,
};
use rustc_hash::FxHashMap;

use super::bound_pods::Seen;
use super::change::Change;
use super::listener::{Connection, Listener};
use super::message::{Live, Message};
use super::resume_point::{BlockDecoderState, DecoderState, DecoderStateDetail, Read, ResumePoint};
use crate::log_listener;
use flash_indexer_telemetry::metrics::{Bound, Metrics};
use flash_indexer_types::ClearCause;
use flash_indexer_types::EngineKind;
use flash_indexer_types::Position;
use flash_indexer_types::Trust;
use flash_indexer_types::logs::Repeats;

/// Why a stream starts over on which its decoder panicked.
pub(super) const DECODER_PANICKED: &str =
    "reading a message failed by a fault of this program: what was known is forgotten";

/// A reading that waits for its message. One at a time: a later one takes its place.
struct PendingRead {
    sequence: u64,
    dp_rank: DpRank,
    detail: DecoderStateDetail,
    read: Read,
}

/// Whether a state is known, and not which messages are in it.
fn lacks_position(position: Position) -> bool {
    position.cursor.is_none() && position.trust == Trust::Degraded
}

/// Whether the engine still has blocks of the size that it was registered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SeenBlockSize {
    /// Nothing has happened that could change it.
    LastTrust,
    /// The engine has started again, and has stored nothing since.
    Open,
    /// The first store of this life has blocks of another size.
    Other(u32),
}

/// What decoding knows of one listener between its messages.
pub(super) struct ListenerDecoder {
    listener: Arc<Listener>,
    metrics: Arc<Metrics>,
    adapter: EngineAdapter,
    stream: Stream<Message>,
    translators: FxHashMap<DpRank, Translator>,
    /// Every rank that the index may hold something of through this stream.
    ranks: BTreeSet<DpRank>,
    /// Ranks that were unregistered while others of the stream were not.
    ignored_ranks: BTreeSet<DpRank>,
    /// Of ranks whose state was taken over: the last message that is in it.
    imported: FxHashMap<DpRank, u64>,
    /// Ranks whose state was taken over, nobody knows from which place of the stream.
    without_position: BTreeSet<DpRank>,
    /// Ranks whose state was taken over from somebody who does not tell cache groups.
    groups_unknown: BTreeSet<DpRank>,
    /// Ranks that are known to be degraded because none of their cache groups tells what blocks contain.
    without_content: BTreeSet<DpRank>,
    /// Who wants to read a rank at a message that has not come yet.
    pending_read: Option<PendingRead>,
    /// What is to follow the next statement about the whole stream.
    changes_after_trust: Vec<Change>,
    hybrid_reported: bool,
    repeated_gaps: Repeats,
    repeated_rejections: Repeats,
    repeated_replays: Repeats,
    repeated_ends: Repeats,
    block_size: SeenBlockSize,
    /// Whether it takes the place of one whose state was lost.
    has_restarted: bool,
    changes: Vec<Change>,
    /// Bytes of the messages that `changes` came of.
    changed_bytes: usize,
}

impl ListenerDecoder {
    pub(super) fn new(listener: Arc<Listener>, metrics: Arc<Metrics>) -> Self {
        let replay = match listener.options.replay_endpoint {
            Some(_) => Replay::Available,
            None => Replay::Unavailable,
        };
        let mut decoder = Self::with_replay(listener, metrics, replay);
        if let Some(position) = decoder.listener.resume_from {
            decoder.stream.remember(position);
        }
        decoder
    }

    fn with_replay(listener: Arc<Listener>, metrics: Arc<Metrics>, replay: Replay) -> Self {
        let options = StreamOptions { replay, start: listener.start, limits: StreamLimits::default() };
        Self {
            adapter: EngineKind::adapter(listener.options.engine.and_then(EngineKind::named)),
            listener,
            metrics,
            stream: Stream::new(options),
            translators: FxHashMap::default(),
            ranks: BTreeSet::new(),
            ignored_ranks: BTreeSet::new(),
            imported: FxHashMap::default(),
            without_position: BTreeSet::new(),
            groups_unknown: BTreeSet::new(),
            without_content: BTreeSet::new(),
            pending_read: None,
            changes_after_trust: Vec::new(),
            hybrid_reported: false,
            repeated_gaps: Repeats::default(),
            repeated_rejections: Repeats::default(),
            repeated_replays: Repeats::default(),
            repeated_ends: Repeats::default(),
            block_size: SeenBlockSize::LastTrust,
            has_restarted: false,
            changes: Vec::new(),
            changed_bytes: 0,
        }
    }

    /// What takes over from an decoder that has failed: everything is forgotten. Nothing is replayed, which
    /// would bring the message again that it failed on.
    pub(super) fn after_panic(self, now: Instant) -> Self {
        self.listener.reject("panicked", DECODER_PANICKED.to_owned());
        self.into_restarted(DECODER_PANICKED, Replay::Unavailable, now)
    }

    /// Has the stream start over because what is known of it is lost. `ranks` are those that are listed for it.
    pub(super) fn restart(&mut self, ranks: Vec<DpRank>, replay: Replay, now: Instant) {
        let (listener, metrics) = (Arc::clone(&self.listener), Arc::clone(&self.metrics));
        let mut lost = std::mem::replace(self, Self::with_replay(listener, metrics, Replay::Unavailable));
        lost.ranks.extend(ranks);
        *self = lost.into_restarted("a thread of the service panicked: what was known is forgotten", replay, now);
    }

    /// What takes over from an decoder whose state is lost.
    fn into_restarted(self, why: &str, replay: Replay, now: Instant) -> Self {
        let replay = match self.listener.options.replay_endpoint {
            Some(_) => replay,
            None => Replay::Unavailable,
        };
        let mut restarted = Self::with_replay(self.listener, self.metrics, replay);
        restarted.listener.cancel_replay();
        restarted.has_restarted = true;
        restarted.changes.push(Change::Restarted);
        // Notes of earlier drops were discarded with the other changes; the stream requests for everything from here on.
        restarted.changes.push(Change::DropsAcknowledged(restarted.listener.drop_runs()));
        restarted.ranks = self.ranks;
        restarted.ignored_ranks = self.ignored_ranks;
        restarted.forget_ranks();
        restarted.changes.push(Change::RecordLoss(None, why.to_owned()));
        restarted.stream.release(None, now);
        if restarted.listener.connection() == Connection::Connected {
            restarted.stream.connected(now);
        }
        restarted.execute();
        restarted.changes.push(Change::Pending(restarted.stream.pending()));
        restarted
    }

    pub(super) fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    /// When time is wanted.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        self.stream.wakes_at()
    }

    /// Bytes that wait for earlier messages.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.stream.waiting_bytes()
    }

    /// What is to be written, with the bytes that it came of.
    pub(super) fn changes(&mut self) -> Vec<Change> {
        self.changed_bytes = 0;
        std::mem::take(&mut self.changes)
    }

    /// The size of the engine's blocks, once, if it came back with another one.
    pub(super) fn take_changed_block_size(&mut self) -> Option<u32> {
        let SeenBlockSize::Other(tokens) = self.block_size else { return None };
        self.block_size = SeenBlockSize::LastTrust;
        Some(tokens)
    }

    pub(super) fn changed_bytes(&self) -> usize {
        self.changed_bytes
    }

    /// A function that says where a rank stands, to be is_requested after the changes are made.
    pub(super) fn resume_point(
        &self,
        dp_rank: DpRank,
        detail: DecoderStateDetail,
    ) -> impl FnOnce() -> ResumePoint + Send + use<> {
        let (listener, is_doubtful) = (Arc::clone(&self.listener), self.stream.is_doubtful());
        let StreamPosition { cursor, epoch, .. } = self.stream.position();
        let translator = self.translators.get(&dp_rank);
        let groups = match self.groups_unknown.contains(&dp_rank) {
            true => None,
            false => Some(translator.map(|translator| translator.groups().collect()).unwrap_or_default()),
        };
        let block_state =
            translator.filter(|_| detail == DecoderStateDetail::Full).map(|translator| BlockDecoderState {
                salts: translator.salts().collect(),
                contents: translator.contents().map(Iterator::collect),
            });
        let decoder_state = DecoderState { groups, block_state: block_state.unwrap_or_default() };
        move || {
            // What is missing behind the position is not its concern.
            let trust = match listener.settled_trust(dp_rank) {
                Trust::Exact if is_doubtful => Trust::Degraded,
                trust => trust,
            };
            ResumePoint { position: Position { cursor, epoch, trust }, decoder_state }
        }
    }

    /// Has a rank read when everything up to this message is applied and nothing after it; not at all if
    /// that is over, or if the stream gets there by a leap.
    pub(super) fn read_at(&mut self, sequence: u64, dp_rank: DpRank, detail: DecoderStateDetail, read: Read) {
        self.pending_read = Some(PendingRead { sequence, dp_rank, detail, read });
        if let Some(cursor) = self.stream.position().cursor {
            self.run_pending_read(cursor.sequence);
        }
    }

    /// The message of this number is the last one that was applied.
    fn run_pending_read(&mut self, sequence: u64) {
        let pending_read = self.pending_read.take_if(|pending_read| pending_read.sequence <= sequence);
        if let Some(PendingRead { dp_rank, detail, read, .. }) =
            pending_read.filter(|pending_read| pending_read.sequence == sequence)
        {
            let resume_point = self.resume_point(dp_rank, detail);
            self.changes.push(Change::Run(Box::new(move || read(resume_point()))));
        }
    }

    /// What the stream has said of a rank is known from elsewhere.
    pub(super) fn restore_decoder_state(
        &mut self,
        dp_rank: DpRank,
        DecoderState { groups, block_state }: DecoderState,
    ) {
        let translator = Self::translator(&mut self.translators, &self.listener, dp_rank);
        translator.learn_salts(block_state.salts);
        if let Some(contents) = block_state.contents {
            translator.learn_contents(contents);
        }
        match groups {
            Some(groups) => translator.learn_groups(groups),
            None => drop(self.groups_unknown.insert(dp_rank)),
        }
    }

    pub(super) fn connected(&mut self, now: Instant) {
        self.stream.connected(now);
        self.execute();
    }

    pub(super) fn disconnected(&mut self) {
        self.stream.disconnected();
        self.execute();
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.stream.tick(now);
        self.execute();
    }

    pub(super) fn shed(&mut self, now: Instant) {
        self.stream.shed(now);
        self.execute();
    }

    /// Takes in a live message.
    pub(super) fn live(&mut self, frames: Vec<Vec<u8>>, now: Instant) {
        #[cfg(any(test, feature = "fault-injection"))]
        assert!(frames[0] != FAULT, "a test asked for a failure");
        self.metrics.message();
        match Live::from_frames(frames) {
            Ok(live) => self.receive_live(live, now),
            Err(error) => {
                self.reject(error.reason(), error.to_string());
                // It may have been the engine's next message.
                self.tail_lost(now);
            }
        }
    }

    /// Messages behind the last live one were lost before they could be decoded.
    pub(super) fn tail_lost(&mut self, now: Instant) {
        self.stream.tail_lost(now);
        self.execute();
    }

    /// Messages were dropped before they reached the decoder, in this run of drops.
    pub(super) fn dropped(&mut self, run: u64, now: Instant) {
        self.tail_lost(now);
        self.changes.push(Change::DropsAcknowledged(run));
    }

    /// Takes in a live message from the bound socket, where only messages show whether a connection stands.
    pub(super) fn receive_routed(&mut self, seen: Seen, live: Live, now: Instant) {
        match seen {
            Seen::Same => {}
            Seen::Reconnected => {
                if self.listener.connection() == Connection::Connected {
                    self.disconnected();
                }
                self.listener.set_connection(Connection::Connected);
                self.connected(now);
            }
            Seen::Duplicate => {
                let why = "two engines publish under the pod's name: only the one that connected last is followed";
                self.reject("duplicate_pod", why.to_owned());
                return self.changes.push(Change::RecordLoss(Some(self.listener.dp_rank), why.to_owned()));
            }
        }
        self.receive_live(live, now);
    }

    /// Takes in a live message that was looked over already.
    fn receive_live(&mut self, live: Live, now: Instant) {
        self.stream.live(live.sequence, live.message, now);
        self.execute();
    }

    /// Takes in one message of an answer to a request for missed ones.
    pub(super) fn replayed(&mut self, attempt: u32, frames: Vec<Vec<u8>>, now: Instant) {
        match ReplayReply::from_frames(&frames) {
            Ok(ReplayReply::Message { sequence, .. }) => {
                self.metrics.replayed();
                self.stream.replayed(attempt, sequence, Message::from_frames(frames), now);
            }
            Ok(ReplayReply::End) => self.stream.replay_ended(attempt, now),
            Err(error) => {
                self.reject("bad_replay", error.to_string());
                self.stream.replay_failed(attempt, now);
            }
        }
        self.execute();
    }

    /// The request for missed messages could not be made.
    pub(super) fn replay_failed(&mut self, attempt: u32, why: String, now: Instant) {
        self.reject("bad_replay", why);
        self.stream.replay_failed(attempt, now);
        self.execute();
    }

    /// Goes on from what was taken over, or from nothing. A stream that has started over goes on already, and what was
    /// taken over is lost.
    pub(super) fn release(&mut self, now: Instant) {
        if self.has_restarted {
            return;
        }
        let released = self.listener.hold().released();
        self.ranks.extend(released.iter().map(|(dp_rank, _)| *dp_rank));
        let known: Vec<_> = released.iter().filter_map(|&(rank, position)| Some((rank, position?))).collect();
        // Ranks are read one after the other where they come from: the earliest one says where to go on.
        let epoch = known.iter().map(|(_, position)| position.epoch).max();
        let current = known.iter().filter(|(_, position)| Some(position.epoch) == epoch);
        let current: Vec<_> =
            current.filter_map(|&(rank, position)| Some((rank, position, position.cursor?))).collect();
        let from = current.iter().map(|&(.., cursor)| cursor).min_by_key(|cursor| cursor.sequence);
        for (dp_rank, position) in released {
            match current.iter().find(|(rank, ..)| *rank == dp_rank) {
                Some((_, position, cursor)) => {
                    self.imported.insert(dp_rank, cursor.sequence);
                    if position.trust == Trust::Degraded {
                        let why = "its state was taken over from a peer that was not sure of it";
                        self.changes_after_trust.push(Change::RecordLoss(Some(dp_rank), why.to_owned()));
                    }
                }
                None if position.is_some_and(lacks_position) => {
                    self.without_position.insert(dp_rank);
                    let why = "its state was taken over from somebody who does not say how old it is";
                    self.changes.push(Change::RecordLoss(Some(dp_rank), why.to_owned()));
                    self.changes_after_trust.push(Change::RecordLoss(Some(dp_rank), why.to_owned()));
                }
                None if from.is_some() => {
                    self.changes.push(Change::Forget(dp_rank));
                    let why = "no state of the rank could be taken over";
                    self.changes_after_trust.push(Change::RecordLoss(Some(dp_rank), why.to_owned()));
                }
                None => self.changes.push(Change::Forget(dp_rank)),
            }
        }
        self.changes.extend(from.map(|cursor| Change::PositionImported(cursor.sequence)));
        let position = epoch.map(|epoch| StreamPosition { cursor: from, epoch, trust: StreamTrust::Exact });
        self.stream.release(position, now);
        self.execute();
    }

    /// Ignores a rank from now on, and forgets it.
    pub(super) fn ignore_rank(&mut self, dp_rank: DpRank) {
        self.ignored_ranks.insert(dp_rank);
        self.translators.remove(&dp_rank);
        self.groups_unknown.remove(&dp_rank);
        self.without_content.remove(&dp_rank);
        self.changes.push(Change::Forget(dp_rank));
    }

    /// Listens to a rank again that was ignored.
    pub(super) fn resume_rank(&mut self, dp_rank: DpRank) {
        if self.ignored_ranks.remove(&dp_rank) {
            let why = "it was unregistered for a while, and its stream went on";
            self.changes.push(Change::RecordLoss(Some(dp_rank), why.to_owned()));
        }
    }

    /// Forgets everything; says where the stream stood.
    pub(super) fn retire(&mut self) -> StreamPosition {
        self.listener.cancel_replay();
        self.ranks.extend(self.listener.hold().ranks());
        self.ranks.insert(self.listener.dp_rank);
        self.forget_ranks();
        self.stream.position()
    }

    fn forget_ranks(&mut self) {
        self.translators.clear();
        self.imported.clear();
        self.without_position.clear();
        self.groups_unknown.clear();
        self.without_content.clear();
        self.pending_read = None;
        self.changes.extend(self.ranks.iter().copied().map(Change::Forget));
    }

    /// Does what the stream wants.
    fn execute(&mut self) {
        while let Some(action) = self.stream.next_action() {
            match action {
                Action::Apply { sequence, payload } => {
                    self.apply_message(sequence, &payload);
                    self.run_pending_read(sequence);
                }
                Action::Ask { attempt, from } => self.listener.request_replay(attempt, from),
                Action::HangUp => self.listener.cancel_replay(),
                Action::Forget(why) => {
                    log_listener!(info, self.listener, why = why.as_str(), "blocks of the stream's ranks forgotten");
                    if why == Forgotten::Restarted {
                        self.metrics.restart();
                        self.block_size = SeenBlockSize::Open;
                    }
                    self.changes.push(Change::ForgetCause(ClearCause::Stream(why)));
                    self.forget_ranks();
                }
                Action::Trust(trust) => {
                    if let StreamTrust::Degraded(why) = trust
                        && !self.listener.is_degraded()
                    {
                        // Once for each fall: a stream that loses much would fill the log.
                        log_listener!(warn, self.listener, %why, "rank degraded: messages were lost");
                    }
                    self.changes.push(Change::Trust(trust));
                    // It is said of all ranks alike, so the next batch has to say again what they lack.
                    self.without_content.clear();
                    self.changes.append(&mut self.changes_after_trust);
                }
                Action::Pending(pending) => self.changes.push(Change::Pending(pending)),
                Action::Note(note) => self.note(note),
            }
        }
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Gap { missed } => {
                self.metrics.gap(missed);
                self.listener.count_gap();
                match self.repeated_gaps.count(Instant::now()) {
                    Some(times) => log_listener!(info, self.listener, missed, times, "gap in the stream"),
                    None => log_listener!(debug, self.listener, missed, "gap in the stream"),
                }
            }
            Note::Lost { messages } => {
                self.metrics.lost(messages);
                log_listener!(debug, self.listener, messages, "messages cannot be replayed");
            }
            Note::ReplayStarted { from, end } => match self.repeated_replays.count(Instant::now()) {
                Some(times) => log_listener!(info, self.listener, from, end, times, "replay started"),
                None => log_listener!(debug, self.listener, from, end, "replay started"),
            },
            Note::Replay(outcome) => {
                self.metrics.replay(outcome);
                let seq = self.stream.position().cursor.map(|cursor| cursor.sequence);
                let outcome = outcome.as_str();
                match self.repeated_ends.count(Instant::now()) {
                    Some(times) => log_listener!(info, self.listener, seq, outcome, times, "replay ended"),
                    None => log_listener!(debug, self.listener, seq, outcome, "replay ended"),
                }
            }
            Note::Mismatch { sequence } => {
                let why = "the engine's message differs from the one applied before: it is of another epoch";
                log_listener!(info, self.listener, seq = sequence, "{why}");
            }
            Note::Duplicate => self.reject("duplicate_message", "a message was received twice".to_owned()),
            Note::WaitingFull { dropped } => {
                let why = format!("too many messages wait for earlier ones; {dropped} of them dropped");
                self.reject("waiting_full", why);
                self.metrics.bound(Bound::WaitingMessages);
            }
        }
    }

    fn reject(&mut self, reason: &'static str, why: String) {
        self.metrics.rejected(reason);
        match self.repeated_rejections.count(Instant::now()) {
            Some(times) => {
                log_listener!(warn, self.listener, reason, times, error = why.as_str(), "message or event rejected")
            }
            None => log_listener!(debug, self.listener, reason, error = why.as_str(), "message or event rejected"),
        }
        self.listener.reject(reason, why);
    }
}

/// Topic of a message in whose decoding a test requests for a panic: no message is known to cause one.
#[cfg(any(test, feature = "fault-injection"))]
const FAULT: &[u8] = b"fault";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, RANK, payload};

    #[test]
    fn a_listener_whose_decoding_panics_starts_over_and_does_not_affect_others() {
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
        assert_eq!(fixture.held_blocks(), 2 + 1 + 2, "the blocks of the failed listener are forgotten");
    }
}
