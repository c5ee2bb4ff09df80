//! Losses after the last live message, and the events that end the doubt about them.

use std::time::Instant;

use super::{Connection, EpochCheck, Phase, Stream};

/// Messages that the service received after the last live message, and lost: it dropped them, or could not decode them.
///
/// If the sequence number of a lost message is known, the stream lacks that message until one of these holds:
///
/// * The message is delivered.
/// * A live message with a higher number shows the gap.
/// * Another epoch begins, and the number was seen on an earlier connection.
/// * Two live messages with lower numbers follow, in order, on the same connection. A publisher counts upwards, so the known number was
///   damaged. A single such message may have arrived late. This rule does not apply to the number of a message that was delivered
///   before the state was cleared, or that a reply has shown: such a number is not damaged.
///
/// A reply that ends before the number does not end the doubt: publishers lose messages of large replies and still send the end marker.
///
/// If no number is known, the missing messages are shown by the next live message, or by the end of a reply that was
/// requested after the loss. After a pause of the service, the messages that are received first were published before the
/// lost ones. Messages received before `shown_from` therefore do not end the doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LostTail {
    /// The last request sent before the loss.
    last_attempt: u32,
    /// One more than the highest number seen on this connection; 0 if none was seen.
    end: u64,
    /// One more than the highest number seen on an earlier connection; 0 if none was seen.
    earlier_end: u64,
    /// One more than the highest number that a reply on this connection has shown, of messages that a cleared state had or that were not
    /// taken; 0 if there is none.
    shown_end: u64,
    /// Whether a live message with a lower number followed.
    is_contradicted: bool,
    /// Live messages that are received before this time do not show the lost ones.
    shown_from: Option<Instant>,
}

impl LostTail {
    /// No loss yet, before the next request.
    fn before(last_attempt: u32) -> Self {
        Self { last_attempt, end: 0, earlier_end: 0, shown_end: 0, is_contradicted: false, shown_from: None }
    }

    /// The losses known so far, with one more. `last_attempt` is the last request sent.
    pub(super) fn with(known: Option<Self>, number: Option<u64>, last_attempt: u32) -> Self {
        let known = known.unwrap_or(Self::before(last_attempt));
        let end = number.map_or(0, |number| number.saturating_add(1));
        let is_contradicted = known.is_contradicted && number.is_none();
        Self { last_attempt, end: known.end.max(end), is_contradicted, ..known }
    }

    /// One more than the highest number seen; 0 if none was seen.
    pub(super) fn end(&self) -> u64 {
        self.end.max(self.earlier_end).max(self.shown_end)
    }

    /// One more than the highest number seen on this connection; 0 if none was seen.
    pub(super) fn connection_end(&self) -> u64 {
        self.end.max(self.shown_end)
    }

    /// Whether the reply to a request has every message that was lost, if the publisher has lost none of the reply.
    pub(super) fn is_before(&self, attempt: u32) -> bool {
        self.last_attempt < attempt
    }

    /// Whether a live message, the next one of its epoch or a later one, leaves a doubt. `repeats` says that a connection
    /// repeats messages of the one before it.
    pub(super) fn remains_after(&mut self, sequence: u64, repeats: bool, now: Instant) -> bool {
        let end = sequence.saturating_add(1);
        if self.shown_from.is_some_and(|from| now < from) {
            return true;
        }
        if end < self.shown_end || (repeats && end < self.earlier_end) {
            return true;
        }
        end < self.end() && !std::mem::replace(&mut self.is_contradicted, true)
    }

    /// Handles the end of a connection. Without a delivered message the epoch of the numbers cannot be compared with a
    /// later one.
    pub(super) fn disconnect(&mut self, has_delivered: bool) {
        self.earlier_end = if has_delivered { self.end() } else { 0 };
        (self.end, self.shown_end, self.is_contradicted) = (0, 0, false);
    }

    /// Handles another epoch.
    pub(super) fn begin_epoch(&mut self) {
        (self.earlier_end, self.shown_end) = (0, 0);
    }
}

impl<P: AsRef<[u8]>> Stream<P> {
    /// Handles the loss of live messages after the last one: dropped before they reached the stream, or not
    /// decodable. `last` is the highest sequence number that was seen on one of them, if any. The stream is not exact
    /// until that message is delivered, or the next live messages show which ones are missing. Without a number, the end of
    /// a reply that was requested afterwards shows it as well.
    pub fn tail_lost(&mut self, last: Option<u64>, now: Instant) {
        self.record_lost_tail(last);
        self.advance_after_loss(now);
    }

    fn advance_after_loss(&mut self, now: Instant) {
        if let (Phase::Delivering, EpochCheck::Verified) = (&self.phase, self.epoch_check) {
            self.advance(now);
        }
    }

    /// Handles a pause of the service, in which the publisher may have dropped messages after the ones that wait in its queues. The stream
    /// is not exact until the end of a reply that is requested from now on, or until a live message is received at or after `shown_from`.
    pub fn tail_unverified(&mut self, shown_from: Instant, now: Instant) {
        self.record_lost_tail(None);
        if let Some(lost) = &mut self.lost_tail {
            lost.shown_from = lost.shown_from.max(Some(shown_from));
        }
        self.advance_after_loss(now);
    }

    pub(super) fn record_lost_tail(&mut self, last: Option<u64>) {
        self.lost_tail = Some(LostTail::with(self.lost_tail, last, self.attempts));
    }

    /// Records the messages that a state has before it is cleared and rebuilt from a replay: a reply may have brought messages
    /// that no live one has shown, and the next reply may lack them.
    pub(super) fn record_cleared(&mut self) {
        if self.next > self.live_floor {
            self.record_shown(self.next);
        }
    }

    /// Records that a reply has shown messages of this epoch before `end`. Some of them are not delivered and not waiting.
    pub(super) fn record_shown(&mut self, end: u64) {
        let lost = self.lost_tail.unwrap_or(LostTail::before(self.attempts.saturating_sub(1)));
        self.lost_tail = Some(LostTail { shown_end: lost.shown_end.max(end), ..lost });
    }

    /// The highest sequence number that this connection has shown, of delivered, waiting and lost messages. A stream that
    /// replaces this one is not exact before it has that message.
    #[must_use]
    pub fn last_known(&self) -> Option<u64> {
        let is_current = self.epoch_check == EpochCheck::Verified && self.connection == Connection::Up;
        let delivered = if is_current { self.next } else { 0 };
        let lost = self.lost_tail.map_or(0, |lost| lost.connection_end());
        self.live_end().unwrap_or_default().max(delivered).max(lost).checked_sub(1)
    }
}
