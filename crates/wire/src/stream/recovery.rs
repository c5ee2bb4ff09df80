//! Recovery of a stream after a gap, a disconnection or a restart of the publisher.

use std::time::Instant;

use super::action::{Action, ClearReason, DegradedReason, ReplayOutcome, StreamEvent};
use super::history::History;
use super::{Connection, EpochCheck, Phase, ReplaySupport, Stream};
use crate::cursor::Cursor;

impl<P: AsRef<[u8]>> Stream<P> {
    /// Delivers the messages that are ready, and starts a repair if messages are missing.
    pub(super) fn advance(&mut self, now: Instant) {
        self.phase = Phase::Delivering;
        self.verify_overlap();
        if self.epoch_check == EpochCheck::Verified {
            self.drain();
            if self.cursor.is_some() && !self.is_behind() {
                return;
            }
        }
        if let (Some(at), true) = (self.tail_repair_at, self.lacks_tail() && !self.is_behind_live())
            && now < at
        {
            // The backoff limits a flood of undecodable messages to one repair at a time.
            return;
        }
        if self.can_request(now) {
            self.start_repair(now);
        } else {
            self.advance_without_replay(now);
        }
    }

    fn can_request(&self, now: Instant) -> bool {
        self.options.replay == ReplaySupport::Available
            && self.connection == Connection::Up
            && self.repairs_paused_until.is_none_or(|until| now >= until)
    }

    /// Continues with the waiting messages and records the missing ones as lost.
    pub(super) fn advance_without_replay(&mut self, now: Instant) {
        if let (EpochCheck::Imported(uninterrupted), Some(cursor), Some(last)) =
            (self.epoch_check, self.cursor, self.waiting.last())
        {
            if last < cursor.sequence {
                self.phase = Phase::Overlapping { until: now + self.options.limits.overlap_deadline };
                return;
            }
            // If the connection was never interrupted, the waiting messages continue the imported position.
            self.epoch_check =
                if uninterrupted == Connection::Down { EpochCheck::Disconnected } else { EpochCheck::Verified };
        }
        let is_behind_live = self.is_behind_live();
        let is_unproven = self.epoch_check == EpochCheck::Disconnected
            || (is_behind_live && self.epoch_check == EpochCheck::Imported(Connection::Down));
        if is_unproven {
            self.raise(DegradedReason::Unverified);
        }
        if !is_behind_live {
            return;
        }
        if is_unproven {
            self.delivered.continue_unproven(self.next);
        }
        self.epoch_check = EpochCheck::Verified;
        self.waiting.drop_before(self.next);
        while let Some(first) = self.waiting.first() {
            if first > self.next {
                self.record_loss_before(first);
            }
            self.drain();
        }
        if self.next < self.live_floor {
            // The last waiting messages were dropped.
            self.record_loss_before(self.live_floor);
        }
        if self.history == History::Unneeded {
            // Repairs are paused because one of an earlier epoch was given up: no repair of this epoch was.
            self.plan_history(now);
        }
    }

    /// Records the undelivered messages before `first` as lost.
    pub(super) fn record_loss_before(&mut self, first: u64) {
        let missed = first - self.next;
        self.record(StreamEvent::Lost { messages: missed });
        if self.cursor.is_none() {
            self.raise(DegradedReason::StartUnknown { missed: first });
        } else {
            self.raise(DegradedReason::Lost { missed, next: first });
            if missed >= self.options.limits.cleared_loss_min {
                self.actions.push_back(Action::Clear(ClearReason::TooMuchLost));
            }
        }
        self.next = first;
    }

    /// Handles a live message of a later epoch. `is_step_back`: it may also be a late message of the same epoch.
    pub(super) fn start_epoch_from_live(&mut self, is_step_back: bool, now: Instant) {
        let known_end = if is_step_back { self.live_floor } else { 0 };
        if is_step_back && self.is_live_unverified() {
            // A difference from a delivered message does not show that these messages are of an epoch before it.
            self.keep_unverified();
        }
        self.waiting.clear();
        self.undelivered.clear();
        self.live_floor = 0;
        self.has_live = false;
        if let Phase::Repairing(_) = self.phase {
            self.end_repair(ReplayOutcome::Interrupted);
        }
        let is_held = matches!(self.phase, Phase::Paused(_));
        if !is_held {
            self.phase = Phase::Delivering;
        }
        let earlier = is_step_back.then(|| self.take_epoch(known_end, now));
        // While the stream is held, no message of the previous epoch was delivered.
        if !is_held {
            self.begin_epoch();
        }
        self.earlier_epoch = earlier;
    }

    /// Clears the state of the previous epoch: the waiting and coming messages belong to a new one.
    pub(super) fn begin_epoch(&mut self) {
        self.cursor = None;
        self.delivered.clear();
        self.next = 0;
        if let Some(lost) = &mut self.lost_tail {
            lost.begin_epoch();
        }
        self.epoch_check = EpochCheck::Verified;
        self.earlier_epoch = self.unverified.take();
        self.earlier_cursor = None;
        self.epoch += 1;
        (self.history, self.has_inexact_rank) = (History::Unneeded, false);
        if !self.has_live {
            // The floor belongs to the previous epoch: live messages of the new one count from zero.
            self.live_floor = 0;
            self.undelivered.clear();
        }
        self.actions.push_back(Action::Clear(ClearReason::Restarted));
        self.loss = None;
        self.announce_trust();
    }

    /// Clears the state because the replay buffer no longer shows whether the cursor's epoch continues.
    pub(super) fn discard_unknown_epoch(&mut self, first: u64, now: Instant) {
        self.earlier_epoch = Some(self.take_epoch(self.live_floor, now));
        self.cursor = None;
        self.next = first;
        if let Some(lost) = &mut self.lost_tail {
            lost.begin_epoch();
        }
        if !self.has_live {
            self.live_floor = 0;
        }
        self.epoch_check = EpochCheck::Verified;
        self.raise(DegradedReason::EpochUnknown);
        self.actions.push_back(Action::Clear(ClearReason::EpochUnknown));
    }

    /// Compares an imported cursor with the waiting message of the same sequence number: either they are equal, or
    /// the publisher is in another epoch.
    pub(super) fn verify_overlap(&mut self) {
        let (EpochCheck::Imported(_), Some(cursor)) = (self.epoch_check, self.cursor) else { return };
        let Some(payload) = self.waiting.get(cursor.sequence) else { return };
        if Cursor::new(cursor.sequence, payload.as_ref()) == cursor {
            self.epoch_check = EpochCheck::Verified;
            self.waiting.drop_before(self.next);
        } else {
            self.record(StreamEvent::Mismatch { sequence: cursor.sequence });
            self.begin_epoch();
        }
    }

    /// Counts a new epoch if the message at the position of an earlier listener differs from the one that listener
    /// received.
    pub(super) fn compare_earlier_cursor(&mut self, cursor: Cursor) {
        let Some(earlier_cursor) = self.earlier_cursor else { return };
        if cursor.sequence >= earlier_cursor.sequence {
            self.earlier_cursor = None;
            if cursor.sequence == earlier_cursor.sequence && cursor != earlier_cursor {
                self.epoch += 1;
            }
        }
    }

    /// Counts a new epoch if the stream ends before the position of an earlier listener.
    pub(super) fn record_end(&mut self, end: u64) {
        if self.earlier_cursor.is_some_and(|earlier_cursor| earlier_cursor.sequence >= end) {
            self.earlier_cursor = None;
            self.epoch += 1;
        }
    }
}
