//! Ordering of one publisher's messages: sequence numbers, gaps, replay and epochs.
//!
//! A [`Stream`] does no I/O and reads no clock. Its caller owns the sockets, passes events in with the time, and
//! executes the [`Action`]s:
//!
//! ```text
//!  live message ───────┐                                ┌─▶ Apply           each sequence number once, in order
//!  connection, lost ───┤           ┌──────────┐         ├─▶ RequestReplay   messages from a number on
//!  replayed message ───┼──────────▶│  Stream  │────────▶┼─▶ Clear           the derived state is invalid
//!  end of a replay ────┤           └──────────┘         ├─▶ Trust           exact, degraded and why
//!  known loss ─────────┤                                ├─▶ Pending         missing, and may still arrive
//!  time ───────────────┘                                └─▶ Record          an event for counters and logs
//! ```
//!
//! # Rules
//!
//! * Sequence numbers count from zero in each epoch of a publisher. A live number below the live numbers seen before
//!   starts a new epoch: all derived state is cleared and rebuilt.
//! * Missing messages are requested if the publisher has a replay endpoint: at the first contact from zero, later
//!   from the cursor's message on. That message comes first in the reply. If it differs from the one received before,
//!   the epoch has changed.
//! * Live messages wait during a repair, up to a limit of messages and bytes.
//! * An empty reply comes from a publisher that has restarted or has lost the reply. All messages are then requested and compared with the
//!   delivered ones; if that reply has none of them either, a new epoch begins. The publisher may have lost messages of both replies. The
//!   stream is not exact until a message differs from the delivered one of its number, or a live one ends the doubt.
//! * A reply with gaps is requested again from the first gap. A request without progress is repeated with backoff up
//!   to a limit; then the missing messages are lost.
//! * A reply that starts above the requested number means that the replay buffer no longer has the earlier messages.
//! * While no message is delivered, the state begins with the first message of a reply, also if its number counts as lost.
//! * A stream is exact while no message is known to be missing: none before the cursor is lost ([`StreamTrust`]), and
//!   none after it is known or suspected to be missing ([`PendingReason`]). Both are derived from the known losses. Every
//!   loss goes through [`Stream::raise`], or is part of the [`LostTail`].
//! * Messages after the last live one that were dropped or could not be decoded are requested at once. Without a
//!   replay endpoint the next live sequence number shows how many they were. A number that was seen on one of them is
//!   missing until it is delivered; the end of a reply before it proves nothing.
//! * A live message that was received before, byte for byte, is ignored. A live message that differs from the delivered
//!   one of its number starts a new epoch. If that one is not remembered, the first live message of a connection makes
//!   the stream verify its epoch by a replay.
//! * A publisher that resumes ([`ReplaySupport::OnReconnect`]) repeats the cursor's message on a new connection, which verifies the
//!   epoch. Another message there is compared and judged as without a replay endpoint.
//! * A live number below the last one of the same connection is of an engine that restarted behind a forwarder, or of a
//!   message that arrived late. The stream is not exact until a replay or the next live message shows which case it is.
//! * A loss degrades the stream until the publisher restarts, or until its whole history is replayed. After a repair that
//!   was given up or left out, all messages from zero on are requested repeatedly. Nothing is cleared before a reply begins
//!   with message 0. The same applies to a stream with a rank whose imported state lacks changes
//!   ([`Stream::record_inexact_rank`]). The derived state is kept if few messages are lost and the epoch is verified;
//!   otherwise it is cleared.

mod action;
mod delivered;
mod earlier_epoch;
mod history;
mod last_trust;
mod live;
mod lost_tail;
mod numbering;
mod options;
mod recovery;
mod reorder_buffer;
mod repair;

use std::collections::VecDeque;
use std::time::Instant;

pub use self::action::{
    Action, ClearReason, DegradedReason, PendingReason, ReplayOutcome, StreamEvent, StreamPosition, StreamTrust, plural,
};
use self::delivered::Delivered;
use self::earlier_epoch::EarlierEpoch;
use self::history::History;
pub use self::last_trust::{AppliedTrust, TrustBasis};
use self::lost_tail::LostTail;
pub use self::numbering::Numbering;
pub use self::options::{ReplaySupport, Start, StreamLimits, StreamOptions};
use self::reorder_buffer::ReorderBuffer;
use self::repair::Repair;
use crate::cursor::Cursor;

/// Stream of one publisher's messages. `P` is a message's payload.
///
/// Memory: the waiting messages, within [`StreamLimits`], and the actions of the last call.
#[derive(Debug)]
pub struct Stream<P> {
    options: StreamOptions,
    actions: VecDeque<Action<P>>,
    waiting: ReorderBuffer<P>,
    phase: Phase,
    /// Cursor of the last message delivered.
    cursor: Option<Cursor>,
    delivered: Delivered,
    /// An earlier epoch that is not proven to have ended.
    earlier_epoch: Option<EarlierEpoch>,
    /// Live messages of earlier connections on which the cursor's epoch was not verified: they may be of a later one.
    unverified: Option<EarlierEpoch>,
    /// Live messages of this connection that were not delivered when they arrived.
    undelivered: Delivered,
    /// Next sequence number to deliver.
    next: u64,
    /// Unrecoverable loss of the current epoch.
    loss: Option<DegradedReason>,
    /// Values of the last [`Action::Trust`] and [`Action::Pending`].
    announced: (StreamTrust, Option<PendingReason>),
    epoch: u64,
    epoch_check: EpochCheck,
    connection: Connection,
    /// Whether the publisher was reached since the stream began.
    is_contacted: bool,
    /// Messages after the last live one that are lost.
    lost_tail: Option<LostTail>,
    /// Earliest time of a repair for a lost tail alone.
    tail_repair_at: Option<Instant>,
    /// A live message with a lower sequence number belongs to a new epoch.
    live_floor: u64,
    /// Whether this connection has received a live message.
    has_live: bool,
    /// Earliest time of the next repair.
    repairs_paused_until: Option<Instant>,
    history: History,
    /// Whether the imported state of a rank lacks changes.
    has_inexact_rank: bool,
    attempts: u32,
    /// Cursor of an earlier listener of this publisher, until it is compared: shows whether its epoch continues.
    earlier_cursor: Option<Cursor>,
}

#[derive(Debug)]
enum Phase {
    /// No message is delivered before the release. Holds whether the connection was never interrupted.
    Paused(Connection),
    /// Messages are delivered as they arrive.
    Delivering,
    /// The live messages have not reached the imported position.
    Overlapping { until: Instant },
    /// Missing messages are requested.
    Repairing(Repair),
}

/// Whether the next message is known to belong to the cursor's epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EpochCheck {
    /// The epoch continues.
    Verified,
    /// The connection was lost after the cursor's message.
    Disconnected,
    /// The cursor was imported. Holds whether this connection was never interrupted.
    Imported(Connection),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connection {
    Up,
    Down,
}

impl<P: AsRef<[u8]>> Stream<P> {
    /// A stream without any message.
    #[must_use]
    pub fn new(options: StreamOptions) -> Self {
        let phase = match options.start {
            Start::Immediate => Phase::Delivering,
            Start::Paused => Phase::Paused(Connection::Down),
        };
        Self {
            options,
            actions: VecDeque::new(),
            waiting: ReorderBuffer::default(),
            phase,
            cursor: None,
            delivered: Delivered::default(),
            earlier_epoch: None,
            unverified: None,
            undelivered: Delivered::default(),
            next: 0,
            loss: None,
            announced: (StreamTrust::Cold, Some(PendingReason::FirstContact)),
            epoch: 1,
            epoch_check: EpochCheck::Verified,
            connection: Connection::Down,
            is_contacted: false,
            lost_tail: None,
            tail_repair_at: None,
            live_floor: 0,
            has_live: false,
            repairs_paused_until: None,
            history: History::Unneeded,
            has_inexact_rank: false,
            attempts: 0,
            earlier_cursor: None,
        }
    }

    /// Continues the epoch count of an earlier listener that stopped at `position`. Its state is not imported: the
    /// stream is requested from its start.
    pub fn continue_epochs(&mut self, position: StreamPosition) {
        self.epoch = position.epoch;
        self.earlier_cursor = position.cursor;
    }

    /// Continues the count of requests of an earlier stream of this publisher: replies to its requests may still arrive, and
    /// are ignored.
    pub fn continue_attempts(&mut self, last: u32) {
        self.attempts = last;
    }

    /// Next action, if any. Call until it returns none after every other call.
    pub fn next_action(&mut self) -> Option<Action<P>> {
        self.actions.pop_front().or_else(|| {
            let pending = self.pending();
            let is_new = std::mem::replace(&mut self.announced.1, pending) != pending;
            is_new.then_some(Action::Pending(pending))
        })
    }

    /// Time of the next [`Stream::tick`].
    #[must_use]
    pub fn wakes_at(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Paused(_) => None,
            Phase::Delivering
                if self.options.replay != ReplaySupport::Available || self.connection == Connection::Down =>
            {
                None
            }
            Phase::Delivering => {
                let tail = self.tail_repair_at.filter(|_| self.lacks_tail());
                [tail, self.history_due_at()].into_iter().flatten().min()
            }
            Phase::Overlapping { until } => Some(*until),
            Phase::Repairing(repair) => Some(repair.wakes_at()),
        }
    }

    /// Payload bytes of the waiting messages.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.bytes()
    }

    /// Number of waiting messages.
    #[must_use]
    pub fn waiting_messages(&self) -> usize {
        self.waiting.len()
    }

    /// Position of the last delivered message and the trust up to it. While the epoch is unverified, the exported
    /// trust is degraded.
    #[must_use]
    pub fn position(&self) -> StreamPosition {
        let trust = match self.trust() {
            StreamTrust::Exact if self.is_epoch_unverified() => StreamTrust::Degraded(DegradedReason::Unverified),
            trust => trust,
        };
        StreamPosition { cursor: self.cursor, epoch: self.epoch, trust }
    }

    /// Trust in the messages delivered up to the cursor.
    fn trust(&self) -> StreamTrust {
        match (self.loss, self.cursor) {
            (Some(loss), _) => StreamTrust::Degraded(loss),
            (None, None) => StreamTrust::Cold,
            (None, Some(_)) => StreamTrust::Exact,
        }
    }

    /// Reason why messages after the cursor are missing and may still arrive.
    #[must_use]
    pub fn pending(&self) -> Option<PendingReason> {
        match &self.phase {
            Phase::Paused(_) => Some(PendingReason::FirstContact),
            Phase::Repairing(_) | Phase::Overlapping { .. } => Some(PendingReason::Recovering { end: self.live_end() }),
            _ if !self.is_contacted => Some(PendingReason::FirstContact),
            _ if self.lost_tail.is_some() => Some(PendingReason::TailLost),
            _ if self.is_epoch_unverified() || self.may_lack_earlier_messages() => Some(PendingReason::Unverified),
            Phase::Delivering => None,
        }
    }

    /// One more than the last live sequence number, if this connection has received a live message.
    fn live_end(&self) -> Option<u64> {
        self.has_live.then_some(self.live_floor)
    }

    /// Whether a received live message is not delivered yet.
    fn is_behind_live(&self) -> bool {
        // The live end of an earlier connection counts once the epoch is verified.
        let is_end_known = self.has_live || self.epoch_check == EpochCheck::Verified;
        !self.waiting.is_empty() || (is_end_known && self.next < self.live_floor)
    }

    /// Whether a message after the cursor is known to be missing.
    fn is_behind(&self) -> bool {
        self.is_behind_live() || self.lacks_tail()
    }

    /// Whether messages after the last live one are known to be missing, or may be.
    fn lacks_tail(&self) -> bool {
        self.lost_tail.is_some() || self.may_lack_earlier_messages()
    }

    /// Whether the publisher may have changed its epoch since the cursor's message.
    #[must_use]
    pub fn is_epoch_unverified(&self) -> bool {
        matches!(self.epoch_check, EpochCheck::Disconnected | EpochCheck::Imported(Connection::Down))
    }

    /// Handles an established connection to the publisher.
    pub fn connected(&mut self, now: Instant) {
        self.connection = Connection::Up;
        self.is_contacted = true;
        if let Some(unverified) = &mut self.unverified {
            unverified.begin_doubt(now);
        }
        let is_resuming = self.is_resuming();
        match &mut self.phase {
            Phase::Paused(uninterrupted) if self.epoch_check == EpochCheck::Verified => *uninterrupted = Connection::Up,
            // The first message of the connection shows whether the epoch continues.
            Phase::Delivering if is_resuming => {}
            Phase::Delivering if self.cursor.is_none() || self.epoch_check != EpochCheck::Verified => self.advance(now),
            _ => {}
        }
    }

    /// Whether the connection is to begin with the cursor's message.
    fn is_resuming(&self) -> bool {
        self.options.replay == ReplaySupport::OnReconnect && self.epoch_check == EpochCheck::Disconnected
    }

    /// Handles a lost connection: the publisher may restart before the next one.
    pub fn disconnected(&mut self) {
        if let Phase::Paused(uninterrupted) = &mut self.phase {
            *uninterrupted = Connection::Down;
            self.epoch_check = EpochCheck::Disconnected;
        }
        self.connection = Connection::Down;
        self.keep_unverified();
        self.has_live = false;
        // The next connection permits a new replay at once.
        (self.repairs_paused_until, self.tail_repair_at) = (None, None);
        // Without a cursor no message was delivered, so the epoch of the live messages does not matter.
        self.live_floor = self.cursor.map_or(self.next, |_| self.live_floor.max(self.next));
        if let (Phase::Repairing(_), EpochCheck::Verified, Some(last)) =
            (&self.phase, self.epoch_check, self.waiting.last())
        {
            // A reply may have shown it when no live number has.
            self.record_shown(last.saturating_add(1));
        }
        if let Some(lost) = &mut self.lost_tail {
            lost.disconnect(self.cursor.is_some());
        }
        // The waiting messages may belong to two epochs: they are requested again.
        self.waiting.clear();
        self.undelivered.clear();
        if let Phase::Repairing(_) = self.phase {
            self.end_repair(ReplayOutcome::Interrupted);
        }
        if let Phase::Overlapping { .. } = self.phase {
            self.phase = Phase::Delivering;
        }
        if self.cursor.is_some() {
            self.epoch_check = EpochCheck::Disconnected;
        }
    }

    /// Handles the passing of time.
    pub fn tick(&mut self, now: Instant) {
        match &self.phase {
            Phase::Overlapping { until } if now >= *until => {
                // The live messages belong to a publisher that has not reached the imported position. A single one may
                // have arrived late.
                if self.waiting.len() == 1 {
                    self.record_lost_tail(None);
                }
                self.begin_epoch();
                self.advance(now);
            }
            Phase::Repairing(repair) if now >= repair.wakes_at() => self.repair_overdue(now),
            Phase::Delivering if self.wakes_at().is_some_and(|at| now >= at) => {
                if self.history_due_at().is_some_and(|at| now >= at) {
                    return self.request_history(now);
                }
                self.tail_repair_at = None;
                self.advance(now);
            }
            _ => {}
        }
    }

    /// Ends the hold. `position` is the position up to which the index has the stream; without one, the stream is
    /// requested from its start.
    pub fn release(&mut self, position: Option<StreamPosition>, now: Instant) {
        let Phase::Paused(uninterrupted) = self.phase else { return };
        self.phase = Phase::Delivering;
        self.epoch_check = EpochCheck::Verified;
        if let Some(StreamPosition { epoch, cursor, trust }) = position {
            self.epoch = epoch;
            if let Some(cursor) = cursor {
                self.cursor = Some(cursor);
                self.delivered.push(cursor);
                self.next = cursor.sequence.saturating_add(1);
                self.epoch_check = EpochCheck::Imported(uninterrupted);
                if self.connection == Connection::Down {
                    self.epoch_check = EpochCheck::Disconnected;
                    self.live_floor = self.live_floor.max(self.next);
                }
                match trust {
                    StreamTrust::Degraded(_) => self.raise(DegradedReason::Inherited),
                    StreamTrust::Cold | StreamTrust::Exact => self.announce_trust(),
                }
            }
        }
        if self.connection == Connection::Up {
            self.advance(now);
        }
    }

    /// Records that the messages before `end` were published in the epoch of the imported position. Call it after
    /// [`Stream::release`]: a lower number on the next connection is of another epoch.
    pub fn record_imported_end(&mut self, end: u64) {
        let is_unconnected = self.connection == Connection::Down && self.cursor.is_some();
        // Engines that connect repeat messages, from where the earlier connection ended.
        if is_unconnected && self.options.replay != ReplaySupport::OnReconnect {
            self.live_floor = self.live_floor.max(end);
        }
    }

    /// Releases waiting messages, because memory is short: gives up a repair or an imported position, and drops the
    /// messages of a paused stream.
    pub fn release_buffered(&mut self, now: Instant) {
        if let Phase::Repairing(_) = self.phase {
            self.give_up(now);
        }
        match self.phase {
            Phase::Overlapping { .. } => {
                self.discard_unknown_epoch(self.waiting.first().unwrap_or(self.next), now);
                self.advance(now);
            }
            Phase::Paused(_) => {
                let dropped = self.waiting.len() as u64;
                self.waiting.clear();
                self.record(StreamEvent::WaitingFull { dropped });
            }
            Phase::Delivering | Phase::Repairing(_) => {}
        }
    }

    fn record(&mut self, event: StreamEvent) {
        self.actions.push_back(Action::Record(event));
    }

    /// Records an unrecoverable loss. No other function degrades a stream.
    fn raise(&mut self, loss: DegradedReason) {
        self.loss = Some(loss);
        self.announce_trust();
    }

    /// A degraded trust is announced again each time: a clear may have made part of the stream exact since.
    fn announce_trust(&mut self) {
        let trust = self.trust();
        if self.announced.0 != trust || self.loss.is_some() {
            self.announced.0 = trust;
            self.actions.push_back(Action::Trust(trust));
        }
    }

    fn apply(&mut self, sequence: u64, payload: P) {
        let is_first = self.cursor.is_none();
        let cursor = Cursor::new(sequence, payload.as_ref());
        self.compare_earlier_cursor(cursor);
        self.cursor = Some(cursor);
        self.delivered.push(cursor);
        self.next = sequence.saturating_add(1);
        if is_first && self.loss.is_none() {
            self.announce_trust();
        }
        self.actions.push_back(Action::Apply { sequence, payload });
    }

    /// Delivers waiting messages up to the first gap.
    fn drain(&mut self) {
        self.waiting.drop_before(self.next);
        while self.waiting.first() == Some(self.next)
            && let Some((sequence, payload)) = self.waiting.pop_first()
        {
            self.apply(sequence, payload);
            self.waiting.drop_before(self.next);
        }
    }

    /// Buffers a live message; if there is no room, the repair is given up.
    fn wait(&mut self, sequence: u64, payload: P, now: Instant) {
        if let EpochCheck::Imported(_) = self.epoch_check {
            // The oldest messages are likely to be covered by the imported position.
            return self.wait_dropping_oldest(sequence, payload);
        }
        if !self.has_room(&payload) {
            self.record(StreamEvent::WaitingFull { dropped: 0 });
            // This message is not lost: it is buffered next.
            self.live_floor = sequence;
            self.release_buffered(now);
            self.live_floor = sequence.saturating_add(1);
        }
        self.waiting.insert(sequence, payload);
        if let Phase::Delivering = self.phase {
            self.advance(now);
        }
    }

    fn wait_dropping_oldest(&mut self, sequence: u64, payload: P) {
        let mut dropped = 0;
        while !self.waiting.is_empty() && !self.has_room(&payload) {
            self.waiting.pop_first();
            dropped += 1;
        }
        if dropped > 0 {
            self.record(StreamEvent::WaitingFull { dropped });
        }
        self.waiting.insert(sequence, payload);
    }

    fn has_room(&self, payload: &P) -> bool {
        let limits = &self.options.limits;
        self.waiting.has_room(payload.as_ref().len(), limits.waiting_messages_max, limits.waiting_bytes_max)
    }
}
