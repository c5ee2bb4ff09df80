//! Live messages: whether a message continues the epoch, and the deliveries that it permits.

use std::time::Instant;

use super::action::{ReplayOutcome, StreamEvent};
use super::delivered::Comparison;
use super::{Connection, EpochCheck, Phase, ReplaySupport, Stream};
use crate::cursor::Cursor;

/// Whether a live message belongs to the epoch of the delivered ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Continuity {
    /// It belongs to the current epoch, or nothing disproves that.
    Continues,
    /// It was received before, byte for byte.
    Duplicate,
    /// It begins another epoch.
    NewEpoch,
    /// A replay has delivered a message of its number, which is not remembered.
    Unknown,
}

impl<P: AsRef<[u8]>> Stream<P> {
    /// Handles a live message.
    pub fn live(&mut self, sequence: u64, payload: P, now: Instant) {
        self.connection = Connection::Up;
        self.is_contacted = true;
        // An engine that restarts closes its connection, unless a forwarder keeps it. Otherwise the message arrives late.
        let is_step_back = self.has_live && sequence < self.live_floor;
        let continuity = self.continuity(sequence, &payload);
        if continuity != Continuity::Duplicate && !is_step_back {
            self.end_earlier_epoch(sequence, &payload, now);
            self.unverified = None;
        }
        match continuity {
            Continuity::Duplicate if self.is_resuming() => {
                if self.cursor.is_some_and(|cursor| cursor.sequence == sequence) {
                    self.epoch_check = EpochCheck::Verified;
                }
                // A lower number on this connection arrives late.
                self.has_live = true;
                return;
            }
            Continuity::Duplicate => return self.record(StreamEvent::Duplicate),
            Continuity::NewEpoch => self.start_epoch_from_live(is_step_back, now),
            Continuity::Unknown => {
                if let Phase::Repairing(_) = self.phase {
                    self.end_repair(ReplayOutcome::Interrupted);
                }
                self.epoch_check = EpochCheck::Disconnected;
            }
            Continuity::Continues => {}
        }
        if is_step_back {
            self.compare_earlier_epoch(sequence, &payload);
            // The next live message, or a replay, shows which epoch continues.
            self.record_lost_tail(None);
        } else if sequence >= self.next || matches!(self.epoch_check, EpochCheck::Imported(_)) {
            // Its sequence number shows the number of messages lost before it. Below an imported position either no message
            // is lost, or the message is of another epoch and the waiting messages show the gap.
            let repeats = self.options.replay == ReplaySupport::OnReconnect;
            self.lost_tail.take_if(|lost| !lost.remains_after(sequence, repeats, now));
        }
        self.record_end(sequence);
        let expected = if self.has_live { self.live_floor } else { self.live_floor.max(self.next) };
        // Before the first contact no message counts as a gap, however far the replay has come.
        let is_first_contact = !self.has_live && self.live_floor == 0 && matches!(self.phase, Phase::Repairing(_));
        if (self.has_live || self.cursor.is_some()) && !is_first_contact && sequence > expected {
            self.record(StreamEvent::Gap { missed: sequence - expected });
        }
        self.has_live = true;
        self.live_floor = sequence.saturating_add(1);
        let is_delivered_now = matches!(self.phase, Phase::Delivering | Phase::Repairing(_))
            && self.epoch_check == EpochCheck::Verified
            && sequence == self.next;
        if !is_delivered_now {
            self.undelivered.push(Cursor::new(sequence, payload.as_ref()));
        }
        if continuity == Continuity::Unknown {
            // The replay that verifies the epoch has this message, in either epoch.
            return self.advance(now);
        }
        match &self.phase {
            Phase::Paused(_) => self.wait_dropping_oldest(sequence, payload),
            Phase::Overlapping { .. } => {
                self.wait(sequence, payload, now);
                if self.cursor.is_some_and(|cursor| sequence >= cursor.sequence) {
                    self.advance(now);
                }
            }
            // A replay has delivered this message before.
            _ if self.epoch_check == EpochCheck::Verified && sequence < self.next => self.finish_if_caught_up(),
            Phase::Repairing(_) if is_delivered_now => {
                self.apply(sequence, payload);
                self.drain();
                self.finish_if_caught_up();
            }
            Phase::Repairing(_) => self.wait(sequence, payload, now),
            Phase::Delivering if is_delivered_now => self.apply(sequence, payload),
            Phase::Delivering => {
                self.waiting.insert(sequence, payload);
                self.advance(now);
            }
        }
        if is_step_back && let Phase::Delivering = self.phase {
            self.advance(now);
        }
    }

    /// Compares a live message with the live and the delivered messages before it.
    fn continuity(&mut self, sequence: u64, payload: &P) -> Continuity {
        if sequence < self.live_floor {
            return if self.is_repeated(sequence, payload) { Continuity::Duplicate } else { Continuity::NewEpoch };
        }
        if !self.is_delivered_by_replay(sequence) {
            return Continuity::Continues;
        }
        match self.delivered.compare(sequence, payload.as_ref()) {
            Comparison::Same => Continuity::Continues,
            Comparison::Different => {
                self.record(StreamEvent::Mismatch { sequence });
                Continuity::NewEpoch
            }
            // Later live messages of the connection continue this one, so the first one is verified for all.
            Comparison::Unknown if !self.has_live => Continuity::Unknown,
            Comparison::Unknown => Continuity::Continues,
        }
    }

    /// Whether a message with the number of a live one was delivered before, or an earlier epoch had such a message.
    fn is_delivered_by_replay(&self, sequence: u64) -> bool {
        let is_following = matches!(self.phase, Phase::Delivering | Phase::Repairing(_));
        is_following && self.epoch_check == EpochCheck::Verified && self.cursor.is_some() && sequence < self.next
    }

    /// Whether a live message equals a recently delivered one, a recent live one of the connection, or a waiting one, byte for
    /// byte.
    fn is_repeated(&self, sequence: u64, payload: &P) -> bool {
        let is_waiting = |waiting: &P| waiting.as_ref() == payload.as_ref();
        [&self.delivered, &self.undelivered]
            .iter()
            .any(|remembered| remembered.compare(sequence, payload.as_ref()) == Comparison::Same)
            || self.waiting.get(sequence).is_some_and(is_waiting)
    }
}
