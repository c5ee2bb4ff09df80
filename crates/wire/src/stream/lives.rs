//! How a stream goes on where it is not whole: after a gap, a loss of the connection, a new life.

use std::time::Instant;

use super::action::{Action, Degraded, Forgotten, Note, ReplayOutcome};
use super::{Doubt, Link, Phase, Replay, Stream};
use crate::cursor::Cursor;

impl<P: AsRef<[u8]>> Stream<P> {
    /// Hands out what can be, and sees to what is missing.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.phase = Phase::Flowing;
        self.compare_overlap();
        if self.doubt == Doubt::None {
            self.drain();
            if self.cursor.is_some() && !self.is_behind() {
                return;
            }
        }
        if let (Some(at), true) = (self.tail_repair_at, self.tail.is_some() && !self.is_behind_live())
            && now < at
        {
            // A flood of unreadable messages asks for one repair a rest.
            return;
        }
        if self.can_ask(now) {
            self.start_repair(now);
        } else {
            self.go_on_without_replay(now);
        }
    }

    fn can_ask(&self, now: Instant) -> bool {
        self.options.replay == Replay::Available
            && self.link == Link::Up
            && self.quiet_until.is_none_or(|until| now >= until)
    }

    /// Goes on with what waits; what is missing is lost.
    pub(super) fn go_on_without_replay(&mut self, now: Instant) {
        if let (Doubt::TakenOver(whole), Some(cursor), Some(last)) = (self.doubt, self.cursor, self.waiting.last()) {
            if last < cursor.sequence {
                self.phase = Phase::Overlapping { until: now + self.options.limits.overlap_deadline };
                return;
            }
            // Over an unbroken connection they go on from where the other observer was.
            self.doubt = if whole == Link::Down { Doubt::Connection } else { Doubt::None };
        }
        let is_behind_live = self.is_behind_live();
        if self.doubt == Doubt::Connection || (is_behind_live && self.doubt == Doubt::TakenOver(Link::Down)) {
            self.raise(Degraded::Unverified);
        }
        if !is_behind_live {
            return;
        }
        self.doubt = Doubt::None;
        self.waiting.drop_before(self.next);
        while let Some(first) = self.waiting.first() {
            if first > self.next {
                self.lose_before(first);
            }
            self.drain();
        }
        if self.next < self.live_floor {
            // The messages that waited last were dropped.
            self.lose_before(self.live_floor);
        }
    }

    /// What was published before `first` and not handed out can no longer be had.
    pub(super) fn lose_before(&mut self, first: u64) {
        let missed = first - self.next;
        self.note(Note::Lost { messages: missed });
        if self.cursor.is_none() {
            self.raise(Degraded::StartUnknown { missed });
        } else {
            self.raise(Degraded::Lost { missed, next: first });
            if missed >= self.options.limits.lost_forgotten_min {
                self.actions.push_back(Action::Forget(Forgotten::TooMuchLost));
            }
        }
        self.next = first;
    }

    /// A live message is of another life than the ones before it.
    pub(super) fn restarted(&mut self) {
        self.waiting.clear();
        self.live_floor = 0;
        self.heard = false;
        if let Phase::Held(_) = self.phase {
            // Nothing of the life before was handed out.
            return;
        }
        if let Phase::Repairing(_) = self.phase {
            self.end_repair(ReplayOutcome::Interrupted);
        }
        self.phase = Phase::Flowing;
        self.begin_life();
    }

    /// What was handed out is of another life than what waits and what comes.
    pub(super) fn begin_life(&mut self) {
        self.cursor = None;
        self.next = 0;
        self.doubt = Doubt::None;
        self.remembered = None;
        self.epoch += 1;
        if !self.heard {
            // The floor is of the epoch before: live messages of this one count from zero.
            self.live_floor = 0;
        }
        self.actions.push_back(Action::Forget(Forgotten::Restarted));
        self.loss = None;
        self.announce_trust();
    }

    /// The publisher can no longer tell whether it is in the life that the cursor is of.
    pub(super) fn life_unknown(&mut self, first: u64) {
        self.cursor = None;
        self.next = first;
        self.doubt = Doubt::None;
        self.raise(Degraded::LifeUnknown);
        self.actions.push_back(Action::Forget(Forgotten::LifeUnknown));
    }

    /// Where another observer has stopped at a message that waits here, it is the same one or the
    /// publisher another.
    pub(super) fn compare_overlap(&mut self) {
        let (Doubt::TakenOver(_), Some(cursor)) = (self.doubt, self.cursor) else { return };
        let Some(payload) = self.waiting.get(cursor.sequence) else { return };
        if Cursor::new(cursor.sequence, payload.as_ref()) == cursor {
            self.doubt = Doubt::None;
            self.waiting.drop_before(self.next);
        } else {
            self.note(Note::Mismatch { sequence: cursor.sequence });
            self.begin_life();
        }
    }

    /// Looks whether this is the life that an earlier listener had stopped in.
    pub(super) fn recognise(&mut self, cursor: Cursor) {
        let Some(remembered) = self.remembered else { return };
        if cursor.sequence >= remembered.sequence {
            self.remembered = None;
            if cursor.sequence == remembered.sequence && cursor != remembered {
                self.epoch += 1;
            }
        }
    }

    /// The publisher has published nothing from `end` on.
    pub(super) fn ends_before(&mut self, end: u64) {
        if self.remembered.is_some_and(|remembered| remembered.sequence >= end) {
            self.remembered = None;
            self.epoch += 1;
        }
    }
}
