//! State of one registered engine.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Instant;

use flash_indexer_core::{AppliedChanges, BlockEvent, DpRank, SharedIndex, WorkerId, WorkerRank};
use flash_indexer_wire::{Action, FrameError, ReplayReply, StreamEvent, UNKNOWN_FIELDS_MAX};

use crate::error::EmbedError;
use crate::options::EngineOptions;
use crate::rank::RankState;
use crate::report::{MessageReport, ReplayRequest};
use crate::state::{IndexState, RANKS_MAX};
use crate::stream::{Message, StreamState};
use crate::trust::{AppliedTrust, RankTrust, with_pending};

/// Limit of the ranks that the batches of one stream name.
pub const RANKS_PER_STREAM_MAX: usize = 1024;

/// Reason why a rank named by two streams of one instance is degraded.
const CONTESTED: &str =
    "batches of another endpoint of the instance name this rank as well; give each endpoint ranks of its own";

#[derive(Debug)]
pub(crate) struct Instance {
    worker: WorkerId,
    options: EngineOptions,
    pub(crate) is_ended: bool,
    /// By the rank that names them.
    streams: BTreeMap<DpRank, StreamState>,
    ranks: BTreeMap<DpRank, RankState>,
    /// Ranks that the messages of the current call changed. Empty between calls.
    changed: Vec<DpRank>,
}

impl Instance {
    pub(crate) fn new(worker: WorkerId, options: EngineOptions) -> Self {
        Self { worker, options, is_ended: false, streams: BTreeMap::new(), ranks: BTreeMap::new(), changed: Vec::new() }
    }

    /// Applies a change that does not come from an engine's message.
    pub(crate) fn apply(
        &mut self,
        shared: &IndexState,
        dp_rank: DpRank,
        event: &BlockEvent,
    ) -> Result<AppliedChanges, EmbedError> {
        let applied = self.rank(shared, dp_rank)?.apply_direct(shared, event);
        self.publish(shared, dp_rank);
        Ok(applied)
    }

    /// Passes an input to a stream and executes the resulting actions.
    pub(crate) fn receive(
        &mut self,
        shared: &IndexState,
        at: DpRank,
        input: Input<'_>,
        now: Instant,
    ) -> Result<MessageReport, EmbedError> {
        self.open_stream(shared, at)?;
        let stream = self.streams.get_mut(&at).expect("it was opened");
        let before = stream.trust();
        let mut report = MessageReport::default();
        match input {
            Input::Live { sequence, payload } => {
                let message = Message::of(payload);
                if let Err(error) = &message.outline {
                    report.reject(error.reason(), error);
                    stream.messages.tail_lost(sequence, now);
                } else if let Some(number) = stream.number(sequence) {
                    stream.messages.live(number, message, now);
                } else {
                    report
                        .reject("unnumbered", &"some messages of the stream have sequence numbers and some have none");
                    stream.messages.tail_lost(None, now);
                }
            }
            Input::BadFrames(error) => {
                report.reject(error.reason(), &error);
                stream.messages.tail_lost(None, now);
            }
            Input::Replayed { attempt, reply } => match reply {
                Ok(ReplayReply::Message { sequence, payload, .. }) => {
                    stream.messages.replayed(attempt, sequence, Message::of(payload), now);
                }
                Ok(ReplayReply::End) => stream.messages.replay_ended(attempt, now),
                Err(error) => {
                    report.reject(error.reason(), &error);
                    stream.messages.replay_failed(attempt, now);
                }
            },
            Input::Connected => stream.messages.connected(now),
            Input::Disconnected => stream.disconnected(),
            Input::Tick => stream.messages.tick(now),
        }
        self.execute(shared, at, &mut report);
        let mut changed = std::mem::take(&mut self.changed);
        if self.streams.get(&at).is_some_and(|stream| stream.trust() != before) || report.cleared.is_some() {
            changed = self.ranks_of(at).collect();
        }
        changed.into_iter().for_each(|dp_rank| self.publish(shared, dp_rank));
        Ok(report)
    }

    /// Trust in a rank; none if the index has no such rank.
    pub(crate) fn trust(&self, shared: &IndexState, dp_rank: DpRank) -> Option<RankTrust> {
        let rank = self.ranks.get(&dp_rank)?;
        let waiting = shared.index.size(self.worker_rank(dp_rank)).waiting;
        Some(self.last_trust(rank).with_waiting(waiting))
    }

    /// Trust in a rank, ignoring blocks that wait for a parent.
    fn last_trust(&self, rank: &RankState) -> RankTrust {
        let Some(stream) = rank.stream.and_then(|at| self.streams.get(&at)) else {
            return with_pending(rank.own.as_ref().unwrap_or(&AppliedTrust::Cold), None);
        };
        let trust = with_pending(rank.own.as_ref().unwrap_or(&stream.last), stream.pending);
        match stream.never_exact {
            Some(why) if trust == RankTrust::EXACT => RankTrust::degraded(why.to_owned()),
            _ => trust,
        }
    }

    fn publish(&self, shared: &IndexState, dp_rank: DpRank) {
        let Some(rank) = self.ranks.get(&dp_rank) else { return };
        let has_waiting = shared.index.size(self.worker_rank(dp_rank)).waiting > 0;
        rank.published.set(self.last_trust(rank).state, has_waiting);
    }

    /// Executes the actions of a stream.
    fn execute(&mut self, shared: &IndexState, at: DpRank, report: &mut MessageReport) {
        while let Some(stream) = self.streams.get_mut(&at)
            && let Some(action) = stream.messages.next_action()
        {
            match action {
                Action::Apply { payload, .. } => self.apply_message(shared, at, &payload, report),
                Action::RequestReplay { attempt, from } => report.replay = Some(ReplayRequest { attempt, from }),
                Action::CloseReplay => report.replay = None,
                Action::Clear(why) => {
                    report.cleared = Some(why);
                    self.states_of(at).for_each(|rank| rank.forget(shared));
                }
                Action::Trust(trust) => {
                    stream.last = AppliedTrust::of(trust, |why| why);
                    self.states_of(at).for_each(RankState::follow_stream);
                    self.changed = self.ranks_of(at).collect();
                }
                Action::Pending(pending) => stream.pending = pending,
                Action::Record(event) => match event {
                    StreamEvent::Gap { missed } => report.missed_messages += missed,
                    StreamEvent::Lost { messages } => report.lost_messages += messages,
                    StreamEvent::Duplicate => report.duplicates += 1,
                    StreamEvent::WaitingFull { dropped } => {
                        report.reject("waiting_full", &format!("{dropped} messages were dropped during a repair"));
                    }
                    StreamEvent::Replay(_) | StreamEvent::ReplayStarted { .. } | StreamEvent::Mismatch { .. } => {}
                },
            }
        }
    }

    /// Applies a message in order.
    fn apply_message(&mut self, shared: &IndexState, at: DpRank, message: &Message, report: &mut MessageReport) {
        report.messages += 1;
        let outline = match &message.outline {
            Ok(outline) => outline,
            Err(error) => {
                // Only a replay brings an invalid batch this far, so the engine has published it.
                report.reject(error.reason(), error);
                return self.lose_stream(at, &error.to_string());
            }
        };
        let dp_rank = outline.dp_rank().unwrap_or(at);
        if let Err((reason, why)) = self.claim(shared, dp_rank, at) {
            report.reject(reason, &why);
            return;
        }
        let Self { options, ranks, .. } = self;
        let rank = ranks.get_mut(&dp_rank).expect("it was claimed");
        let mut events = outline.batch(&message.payload, options.adapter).events;
        for event in events.by_ref() {
            rank.apply_event(shared, options, event, report);
        }
        for field in events.take_unknown_fields() {
            let name = format!("{}: {}", field.event, field.name);
            if report.unknown_fields.len() < UNKNOWN_FIELDS_MAX && !report.unknown_fields.contains(&name) {
                report.unknown_fields.push(name);
            }
        }
        rank.end_batch();
        if self.changed.last() != Some(&dp_rank) {
            self.changed.push(dp_rank);
        }
    }

    /// Assigns a rank to a stream.
    fn claim(&mut self, shared: &IndexState, dp_rank: DpRank, at: DpRank) -> Result<(), (&'static str, String)> {
        let owner = self.ranks.get(&dp_rank).and_then(|rank| rank.stream);
        if owner == Some(at) {
            return Ok(());
        }
        if let Some(owner) = owner {
            let why = format!("a batch names rank {dp_rank}, which belongs to the stream of rank {owner}");
            self.ranks.get_mut(&dp_rank).expect("it has an owner").lose(&CONTESTED);
            self.publish(shared, dp_rank);
            // The batch may be of any of the stream's ranks.
            self.lose_stream(at, &why);
            return Err(("rank_of_other_stream", why));
        }
        if self.ranks_of(at).count() >= RANKS_PER_STREAM_MAX {
            return Err(("too_many_ranks", format!("more than {RANKS_PER_STREAM_MAX} ranks in one stream")));
        }
        let rank = self.rank(shared, dp_rank).map_err(|error| ("too_many_ranks", error.to_string()))?;
        rank.join(at);
        Ok(())
    }

    /// Adds the stream of a rank's endpoint, and the rank.
    fn open_stream(&mut self, shared: &IndexState, at: DpRank) -> Result<(), EmbedError> {
        if self.streams.contains_key(&at) {
            return Ok(());
        }
        let rank = self.rank(shared, at)?;
        if let Some(owner) = rank.stream {
            return Err(EmbedError::RankOfOtherStream { rank: at.0, owner: owner.0 });
        }
        rank.join(at);
        self.streams.insert(at, StreamState::new(&self.options));
        Ok(())
    }

    /// The state of a rank, which is added if the index has none.
    fn rank(&mut self, shared: &IndexState, dp_rank: DpRank) -> Result<&mut RankState, EmbedError> {
        let rank = self.worker_rank(dp_rank);
        match self.ranks.entry(dp_rank) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let published = shared.listed.add_rank(rank, RANKS_MAX);
                let published = published.ok_or(EmbedError::TooManyRanks { max: RANKS_MAX })?;
                Ok(place.insert(RankState::new(rank, published)))
            }
        }
    }

    /// Records a lost change of any rank of a stream.
    fn lose_stream(&mut self, at: DpRank, why: &str) {
        if let Some(stream) = self.streams.get_mut(&at) {
            stream.last = AppliedTrust::Lost(why.to_owned());
        }
        self.states_of(at).for_each(|rank| rank.own = None);
        self.changed = self.ranks_of(at).collect();
    }

    fn ranks_of(&self, at: DpRank) -> impl Iterator<Item = DpRank> {
        self.ranks.iter().filter(move |(_, rank)| rank.stream == Some(at)).map(|(&dp_rank, _)| dp_rank)
    }

    fn states_of(&mut self, at: DpRank) -> impl Iterator<Item = &mut RankState> {
        self.ranks.values_mut().filter(move |rank| rank.stream == Some(at))
    }

    fn worker_rank(&self, dp_rank: DpRank) -> WorkerRank {
        WorkerRank { worker: self.worker, dp_rank }
    }
}

/// Input of a stream.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// A live message, with its sequence number if it has one.
    Live {
        sequence: Option<u64>,
        payload: &'a [u8],
    },
    /// Frames that are not a message.
    BadFrames(FrameError),
    /// A message of the reply to a request.
    Replayed {
        attempt: u32,
        reply: Result<ReplayReply<'a>, FrameError>,
    },
    Connected,
    Disconnected,
    /// The passing of time.
    Tick,
}
