//! One publisher's stream: which message comes next, and what to do when it does not.
//!
//! A [`Stream`] does no I/O and knows no clock. Whoever owns the sockets tells it what happened, with
//! the time, and takes [`Action`]s in return:
//!
//! ```text
//!  live message ───────┐                                   ┌─▶ Apply      each number once, in order
//!  connection, lost ───┤            ┌──────────┐           ├─▶ Ask        messages from a number on
//!  replayed message ───┼───────────▶│  Stream  │──────────▶┼─▶ Forget     a new life of the publisher
//!  end of a replay ────┤            └──────────┘           ├─▶ Trust      exact, degraded and why
//!  known loss ─────────┤                                   ├─▶ Pending    missing, and may still arrive
//!  time ───────────────┘                                   └─▶ Note       for counters
//! ```
//!
//! # Rules
//!
//! * Numbers count from zero in each life of a publisher. A live number below what has been seen live is
//!   a new life: everything is forgotten and built up again.
//! * What is missing is asked for, where that can be done: at the first contact everything from zero, later
//!   everything from the last message that was handed out. That message comes first in the answer and
//!   must be the same as before; if it is another, it is of another life.
//! * Meanwhile live messages wait, in number and bytes up to a bound.
//! * An answer may have holes: it is asked again from the first one. A request that brings nothing new is
//!   repeated after a rest, a few times; then what is missing is given up.
//! * An answer that starts above what was asked for means that the rest is gone.
//! * A stream is exact while nothing is known to be missing: no message before the cursor was given up
//!   ([`StreamTrust`]), and none behind it is known or suspected to be missing ([`Pending`]). Both are computed from
//!   what is known; every loss goes through [`Stream::raise`] or [`Stream::tail_lost`].
//! * Messages that were dropped or unreadable behind the last live one are asked for at once. Without a replay the
//!   number of the next live message shows how many they were.
//! * A live message that was received already, byte for byte, is ignored.
//! * What is given up degrades the stream until the publisher starts again. What was known is kept if few
//!   messages are lost and the publisher is known to be the same one; else it is forgotten.

mod action;
mod lives;
mod options;
mod repair;
mod waiting;

use std::collections::VecDeque;
use std::time::Instant;

pub use self::action::{
    Action, Degraded, Forgotten, Note, Pending, ReplayOutcome, StreamPosition, StreamTrust, plural,
};
pub use self::options::{Replay, Start, StreamLimits, StreamOptions};
use self::repair::Repair;
use self::waiting::Waiting;
use crate::cursor::Cursor;

/// Follows one publisher. `P` is a message's payload.
///
/// Memory: the waiting messages, within [`StreamLimits`], and what the last call made of them.
#[derive(Debug)]
pub struct Stream<P> {
    options: StreamOptions,
    actions: VecDeque<Action<P>>,
    waiting: Waiting<P>,
    phase: Phase,
    /// The last message handed out.
    cursor: Option<Cursor>,
    /// Number of the next one to hand out.
    next: u64,
    /// What is lost for good since the publisher started.
    loss: Option<Degraded>,
    /// What the last [`Action::Trust`] and [`Action::Pending`] said.
    announced: (StreamTrust, Option<Pending>),
    epoch: u64,
    doubt: Doubt,
    link: Link,
    /// Whether the publisher was reached since the stream began.
    is_contacted: bool,
    /// Messages behind the last live one were lost; the last request sent before that.
    tail: Option<u32>,
    /// No repair of a lost tail alone is started before.
    tail_repair_at: Option<Instant>,
    /// A live message with a lower number is of another life.
    live_floor: u64,
    /// Whether a message came over this connection.
    heard: bool,
    /// No repair is tried before.
    quiet_until: Option<Instant>,
    attempts: u32,
    /// Where an earlier listener of this publisher had stopped: tells whether it is still in that life.
    remembered: Option<Cursor>,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is handed out before the release; whether the connection was whole all the time.
    Held(Link),
    /// Messages are handed out as they come.
    Flowing,
    /// The live messages have not reached the place yet that was taken over.
    Overlapping { until: Instant },
    /// Something is missing and asked for.
    Repairing(Repair),
}

/// Whether the publisher of the next message need be that of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    None,
    /// The connection was lost in between.
    Connection,
    /// The last one was seen by somebody else; whether this connection stood all the time.
    TakenOver(Link),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Up,
    Down,
}

impl<P: AsRef<[u8]>> Stream<P> {
    /// A stream that nothing is known of.
    #[must_use]
    pub fn new(options: StreamOptions) -> Self {
        let phase = match options.start {
            Start::AtOnce => Phase::Flowing,
            Start::Held => Phase::Held(Link::Down),
        };
        Self {
            options,
            actions: VecDeque::new(),
            waiting: Waiting::default(),
            phase,
            cursor: None,
            next: 0,
            loss: None,
            announced: (StreamTrust::Cold, Some(Pending::FirstContact)),
            epoch: 1,
            doubt: Doubt::None,
            link: Link::Down,
            is_contacted: false,
            tail: None,
            tail_repair_at: None,
            live_floor: 0,
            heard: false,
            quiet_until: None,
            attempts: 0,
            remembered: None,
        }
    }

    /// Counts lives on from an earlier listener that stopped at `position`. Nothing of what it knew is
    /// taken over: the stream is asked for from its start.
    pub fn remember(&mut self, position: StreamPosition) {
        self.epoch = position.epoch;
        self.remembered = position.cursor;
    }

    /// The next thing to do, if any. To be asked until there is none after every other call.
    pub fn next_action(&mut self) -> Option<Action<P>> {
        self.actions.pop_front().or_else(|| {
            let pending = self.pending();
            let is_new = std::mem::replace(&mut self.announced.1, pending) != pending;
            is_new.then_some(Action::Pending(pending))
        })
    }

    /// When [`Stream::tick`] is wanted.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Held(_) => None,
            Phase::Flowing if self.tail.is_some() && self.link == Link::Up => {
                self.tail_repair_at.filter(|_| self.options.replay == Replay::Available)
            }
            Phase::Flowing => None,
            Phase::Overlapping { until } => Some(*until),
            Phase::Repairing(repair) => Some(repair.wakes_at()),
        }
    }

    /// Payload bytes that wait.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.bytes()
    }

    /// Messages that wait.
    #[must_use]
    pub fn waiting_messages(&self) -> usize {
        self.waiting.len()
    }

    /// What was handed out so far, and how far it can be believed. While it is open whether the publisher
    /// is still the same one, nobody else should believe more than that.
    #[must_use]
    pub fn position(&self) -> StreamPosition {
        let trust = match self.trust() {
            StreamTrust::Exact if self.is_doubtful() => StreamTrust::Degraded(Degraded::Unverified),
            trust => trust,
        };
        StreamPosition { cursor: self.cursor, epoch: self.epoch, trust }
    }

    /// Trust in what was handed out up to the cursor.
    fn trust(&self) -> StreamTrust {
        match (self.loss, self.cursor) {
            (Some(loss), _) => StreamTrust::Degraded(loss),
            (None, None) => StreamTrust::Cold,
            (None, Some(_)) => StreamTrust::Exact,
        }
    }

    /// What is known to be missing behind the cursor, and may still arrive.
    #[must_use]
    pub fn pending(&self) -> Option<Pending> {
        match &self.phase {
            Phase::Held(_) => Some(Pending::FirstContact),
            Phase::Repairing(_) | Phase::Overlapping { .. } => Some(Pending::Recovering { end: self.live_end() }),
            _ if !self.is_contacted => Some(Pending::FirstContact),
            _ if self.tail.is_some() => Some(Pending::TailLost),
            _ if self.is_doubtful() => Some(Pending::Unverified),
            Phase::Flowing => None,
        }
    }

    /// One more than the number of the last live message, if one was received over this connection.
    fn live_end(&self) -> Option<u64> {
        self.heard.then_some(self.live_floor)
    }

    /// Whether a live message was received that is not handed out yet.
    fn is_behind_live(&self) -> bool {
        // The end that an earlier connection has shown counts once the publisher is known to be the same one.
        let is_end_known = self.heard || self.doubt == Doubt::None;
        !self.waiting.is_empty() || (is_end_known && self.next < self.live_floor)
    }

    /// Whether anything behind the cursor is known to be missing.
    fn is_behind(&self) -> bool {
        self.is_behind_live() || self.tail.is_some()
    }

    /// Whether it is open if the publisher is still the one that the cursor is of.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        matches!(self.doubt, Doubt::Connection | Doubt::TakenOver(Link::Down))
    }

    /// A live message came.
    pub fn live(&mut self, sequence: u64, payload: P, now: Instant) {
        self.link = Link::Up;
        self.is_contacted = true;
        if sequence < self.live_floor {
            if self.is_repeated(sequence, &payload) {
                return self.note(Note::Duplicate);
            }
            self.restarted();
        }
        if sequence >= self.next {
            // Its number shows what was lost before it.
            self.tail = None;
        }
        self.ends_before(sequence);
        let expected = if self.heard { self.live_floor } else { self.live_floor.max(self.next) };
        // Before the first contact nothing was missed, however far the answer about that time has come.
        let is_first_contact = !self.heard && self.live_floor == 0 && matches!(self.phase, Phase::Repairing(_));
        if (self.heard || self.cursor.is_some()) && !is_first_contact && sequence > expected {
            self.note(Note::Gap { missed: sequence - expected });
        }
        self.heard = true;
        self.live_floor = sequence.saturating_add(1);
        match &self.phase {
            Phase::Held(_) => self.wait_dropping_oldest(sequence, payload),
            Phase::Overlapping { .. } => {
                self.wait(sequence, payload, now);
                if self.cursor.is_some_and(|cursor| sequence >= cursor.sequence) {
                    self.go_on(now);
                }
            }
            // A replay was ahead of it.
            _ if self.doubt == Doubt::None && sequence < self.next => self.finish_if_caught_up(),
            Phase::Repairing(_) if self.doubt == Doubt::None && sequence == self.next => {
                self.apply(sequence, payload);
                self.drain();
                self.finish_if_caught_up();
            }
            Phase::Repairing(_) => self.wait(sequence, payload, now),
            Phase::Flowing if self.doubt == Doubt::None && sequence == self.next => self.apply(sequence, payload),
            Phase::Flowing => {
                self.waiting.insert(sequence, payload);
                self.go_on(now);
            }
        }
    }

    /// The connection to the publisher stands.
    pub fn connected(&mut self, now: Instant) {
        self.link = Link::Up;
        self.is_contacted = true;
        match &mut self.phase {
            Phase::Held(whole) if self.doubt == Doubt::None => *whole = Link::Up,
            Phase::Flowing if self.cursor.is_none() || self.doubt != Doubt::None => self.go_on(now),
            _ => {}
        }
    }

    /// Live messages behind the last one were dropped before they reached the stream, or could not be read. Their
    /// number is not known: the stream is not exact until a replay or the next live message shows what is missing.
    pub fn tail_lost(&mut self, now: Instant) {
        self.tail = Some(self.attempts);
        if let (Phase::Flowing, Doubt::None) = (&self.phase, self.doubt) {
            self.go_on(now);
        }
    }

    /// The connection was lost: whoever answers next need not be the same publisher.
    pub fn disconnected(&mut self) {
        if let Phase::Held(whole) = &mut self.phase {
            *whole = Link::Down;
            self.doubt = Doubt::Connection;
        }
        self.link = Link::Down;
        self.heard = false;
        // The next connection is a new chance for the replay as well.
        self.quiet_until = None;
        // Without a cursor nothing was handed out: which epoch the live messages were of is of no concern.
        self.live_floor = self.cursor.map_or(self.next, |_| self.live_floor.max(self.next));
        // Of two lives perhaps: it is asked for again.
        self.waiting.clear();
        if let Phase::Repairing(_) = self.phase {
            self.end_repair(ReplayOutcome::Interrupted);
        }
        if let Phase::Overlapping { .. } = self.phase {
            self.phase = Phase::Flowing;
        }
        if self.cursor.is_some() {
            self.doubt = Doubt::Connection;
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        match &self.phase {
            Phase::Overlapping { until } if now >= *until => {
                // The live messages are those of a publisher that has not come so far.
                self.begin_life();
                self.go_on(now);
            }
            Phase::Repairing(repair) if now >= repair.wakes_at() => self.repair_overdue(now),
            Phase::Flowing if self.wakes_at().is_some_and(|at| now >= at) => {
                self.tail_repair_at = None;
                if self.doubt == Doubt::None {
                    self.go_on(now);
                }
            }
            _ => {}
        }
    }

    /// Ends the hold. `position` says what the index holds of the stream already; without one it is
    /// heard from its start.
    pub fn release(&mut self, position: Option<StreamPosition>, now: Instant) {
        let Phase::Held(whole) = self.phase else { return };
        self.phase = Phase::Flowing;
        self.doubt = Doubt::None;
        if let Some(StreamPosition { epoch, cursor, trust }) = position {
            self.epoch = epoch;
            if let Some(cursor) = cursor {
                self.cursor = Some(cursor);
                self.next = cursor.sequence.saturating_add(1);
                self.doubt = Doubt::TakenOver(whole);
                if self.link == Link::Down {
                    self.doubt = Doubt::Connection;
                    self.live_floor = self.live_floor.max(self.next);
                }
                match trust {
                    StreamTrust::Degraded(_) => self.raise(Degraded::Inherited),
                    StreamTrust::Cold | StreamTrust::Exact => self.announce_trust(),
                }
            }
        }
        if self.link == Link::Up {
            self.go_on(now);
        }
    }

    /// Gives up what is waited for, because memory is short elsewhere.
    pub fn shed(&mut self, now: Instant) {
        if let Phase::Repairing(_) = self.phase {
            self.give_up(now);
        }
        match self.phase {
            Phase::Overlapping { .. } => {
                self.life_unknown(self.waiting.first().unwrap_or(self.next));
                self.go_on(now);
            }
            Phase::Held(_) => {
                let dropped = self.waiting.len() as u64;
                self.waiting.clear();
                self.note(Note::WaitingFull { dropped });
            }
            Phase::Flowing | Phase::Repairing(_) => {}
        }
    }

    fn note(&mut self, note: Note) {
        self.actions.push_back(Action::Note(note));
    }

    /// Records a loss that no message can repair any more. The one place where a stream becomes degraded.
    fn raise(&mut self, loss: Degraded) {
        self.loss = Some(loss);
        self.announce_trust();
    }

    /// A degraded trust is announced again each time: a part of the stream may have become exact by a clear since.
    fn announce_trust(&mut self) {
        let trust = self.trust();
        if self.announced.0 != trust || self.loss.is_some() {
            self.announced.0 = trust;
            self.actions.push_back(Action::Trust(trust));
        }
    }

    /// Whether a live message is the last one that was handed out, or one that waits, byte for byte.
    fn is_repeated(&self, sequence: u64, payload: &P) -> bool {
        let is_last = self.cursor.is_some_and(|cursor| cursor.sequence == sequence);
        let is_waiting = |waiting: &P| waiting.as_ref() == payload.as_ref();
        (is_last && self.cursor == Some(Cursor::new(sequence, payload.as_ref())))
            || self.waiting.get(sequence).is_some_and(is_waiting)
    }

    fn apply(&mut self, sequence: u64, payload: P) {
        let is_first = self.cursor.is_none();
        let cursor = Cursor::new(sequence, payload.as_ref());
        self.recognise(cursor);
        self.cursor = Some(cursor);
        self.next = sequence.saturating_add(1);
        if is_first && self.loss.is_none() {
            self.announce_trust();
        }
        self.actions.push_back(Action::Apply { sequence, payload });
    }

    /// Hands out what waits, up to the first hole.
    fn drain(&mut self) {
        self.waiting.drop_before(self.next);
        while self.waiting.first() == Some(self.next)
            && let Some((sequence, payload)) = self.waiting.pop_first()
        {
            self.apply(sequence, payload);
            self.waiting.drop_before(self.next);
        }
    }

    /// Keeps a live message; where there is no room, what was waited for is given up.
    fn wait(&mut self, sequence: u64, payload: P, now: Instant) {
        if let Doubt::TakenOver(_) = self.doubt {
            // The oldest are likely to be in what was taken over.
            return self.wait_dropping_oldest(sequence, payload);
        }
        if !self.has_room(&payload) {
            self.note(Note::WaitingFull { dropped: 0 });
            // This message is not lost: it waits next.
            self.live_floor = sequence;
            self.shed(now);
            self.live_floor = sequence.saturating_add(1);
        }
        self.waiting.insert(sequence, payload);
        if let Phase::Flowing = self.phase {
            self.go_on(now);
        }
    }

    fn wait_dropping_oldest(&mut self, sequence: u64, payload: P) {
        let mut dropped = 0;
        while !self.waiting.is_empty() && !self.has_room(&payload) {
            self.waiting.pop_first();
            dropped += 1;
        }
        if dropped > 0 {
            self.note(Note::WaitingFull { dropped });
        }
        self.waiting.insert(sequence, payload);
    }

    fn has_room(&self, payload: &P) -> bool {
        let limits = &self.options.limits;
        self.waiting.has_room(payload.as_ref().len(), limits.waiting_messages_max, limits.waiting_bytes_max)
    }
}
