//! Asking for what is missing.

use std::time::Instant;

use super::action::{Action, Note, ReplayOutcome};
use super::{Doubt, Phase, Stream};
use crate::cursor::Cursor;

/// One repair: requests until nothing is missing, or until they are given up.
#[derive(Debug)]
pub(super) struct Repair {
    attempt: u32,
    asks: u32,
    /// The latest requests that brought nothing new.
    fruitless: u32,
    /// The publisher no longer had everything.
    is_truncated: bool,
    request: Request,
}

#[derive(Debug)]
enum Request {
    Asked {
        from: u64,
        /// What must come first, so that it is the same life.
        check: Option<Cursor>,
        /// Number of the latest message of the answer.
        last: Option<u64>,
        has_brought: bool,
        deadline: Instant,
    },
    Resting {
        until: Instant,
    },
}

impl Repair {
    pub(super) fn wakes_at(&self) -> Instant {
        match self.request {
            Request::Asked { deadline, .. } => deadline,
            Request::Resting { until } => until,
        }
    }
}

/// What is left to do with the first message of an answer.
enum First {
    /// It is a message like the others.
    TakeIn,
    /// Nothing.
    Done,
}

impl<P: AsRef<[u8]>> Stream<P> {
    /// A message of the answer to a request came.
    pub fn replayed(&mut self, attempt: u32, sequence: u64, payload: P, now: Instant) {
        let answer_deadline = self.options.limits.answer_deadline;
        let Some(Request::Asked { from, check, last, deadline, .. }) = self.request(attempt) else { return };
        if sequence < *from || last.is_some_and(|last| sequence <= last) {
            // Not an answer to what was asked.
            return self.ask_again(now);
        }
        *deadline = now + answer_deadline;
        let (is_first, check) = (last.replace(sequence).is_none(), *check);
        if is_first && let First::Done = self.take_first(check, sequence, &payload, now) {
            return;
        }
        if sequence == self.next {
            self.has_brought();
            self.apply(sequence, payload);
            self.drain();
        } else if sequence > self.next && self.waiting.get(sequence).is_none() && self.has_room(&payload) {
            self.has_brought();
            self.waiting.insert(sequence, payload);
        }
        self.finish_if_caught_up();
    }

    /// The answer to a request is complete, as far as the publisher is concerned.
    pub fn replay_ended(&mut self, attempt: u32, now: Instant) {
        let Some(Request::Asked { check, last, .. }) = self.request(attempt) else { return };
        match (*last, *check) {
            // It has not published so many messages in this life; without a loss of the connection it
            // is the same life, and keeps nothing.
            (None, Some(_)) if self.doubt != Doubt::None => {
                self.begin_life();
                self.go_on_repairing(now);
            }
            (None, Some(_)) => self.ask_again(now),
            _ if !self.is_behind_live() => {
                self.ends_before(self.next);
                // What was lost after the request was sent need not be in its answer.
                if self.tail.is_some_and(|lost_at| lost_at < attempt) {
                    self.tail = None;
                    self.tail_repair_at = Some(now + self.options.limits.rest);
                }
                match self.tail {
                    None => self.end_whole_repair(),
                    Some(_) => self.go_on_repairing(now),
                }
            }
            _ => self.ask_again(now),
        }
    }

    /// The answer to a request cannot be read, or the socket failed.
    pub fn replay_failed(&mut self, attempt: u32, now: Instant) {
        if self.request(attempt).is_some() {
            self.ask_again(now);
        }
    }

    pub(super) fn start_repair(&mut self, now: Instant) {
        let request = Request::Resting { until: now };
        let repair = Repair { attempt: 0, asks: 0, fruitless: 0, is_truncated: false, request };
        self.phase = Phase::Repairing(repair);
        let from = self.cursor.map_or(0, |cursor| cursor.sequence);
        self.note(Note::ReplayStarted { from, end: self.live_end() });
        self.ask(now);
    }

    /// Nothing came for too long, or a rest is over.
    pub(super) fn repair_overdue(&mut self, now: Instant) {
        let Phase::Repairing(repair) = &self.phase else { return };
        match repair.request {
            Request::Asked { .. } => self.ask_again(now),
            Request::Resting { .. } => self.ask(now),
        }
    }

    pub(super) fn finish_if_caught_up(&mut self) {
        let is_whole = self.doubt == Doubt::None && self.heard && !self.is_behind();
        if matches!(self.phase, Phase::Repairing(_)) && is_whole {
            self.end_whole_repair();
        }
    }

    pub(super) fn end_repair(&mut self, outcome: ReplayOutcome) {
        self.phase = Phase::Flowing;
        self.actions.push_back(Action::HangUp);
        self.note(Note::Replay(outcome));
    }

    pub(super) fn give_up(&mut self, now: Instant) {
        self.quiet_until = Some(now + self.options.limits.quiet);
        self.tail_repair_at = self.quiet_until;
        if !self.heard {
            // No whole answer was received, and no live message shows where it should have ended.
            self.tail = Some(self.attempts);
        }
        self.end_repair(ReplayOutcome::GivenUp);
        self.go_on_without_replay(now);
    }

    fn end_whole_repair(&mut self) {
        let Phase::Repairing(repair) = &self.phase else { return };
        let outcome = if repair.is_truncated { ReplayOutcome::Truncated } else { ReplayOutcome::Complete };
        self.end_repair(outcome);
    }

    fn request(&mut self, attempt: u32) -> Option<&mut Request> {
        match &mut self.phase {
            Phase::Repairing(repair) if repair.attempt == attempt => Some(&mut repair.request),
            _ => None,
        }
    }

    fn has_brought(&mut self) {
        if let Phase::Repairing(Repair { request: Request::Asked { has_brought, .. }, .. }) = &mut self.phase {
            *has_brought = true;
        }
    }

    /// Draws the conclusions from where an answer starts.
    fn take_first(&mut self, check: Option<Cursor>, sequence: u64, payload: &P, now: Instant) -> First {
        self.compare_overlap();
        if check.is_some() && self.cursor.is_none() {
            self.go_on_repairing(now);
            return First::Done;
        }
        match check {
            Some(check) if sequence == check.sequence => {
                if Cursor::new(sequence, payload.as_ref()) == check {
                    self.doubt = Doubt::None;
                    self.drain();
                    self.finish_if_caught_up();
                } else {
                    if self.doubt == Doubt::None {
                        // The live messages came over the connection to the life before, or after it: the replay
                        // has those that count.
                        self.waiting.clear();
                        self.live_floor = 0;
                    }
                    self.note(Note::Mismatch { sequence });
                    self.begin_life();
                    self.go_on_repairing(now);
                }
                First::Done
            }
            _ => {
                let first = self.waiting.first().map_or(sequence, |waiting| waiting.min(sequence));
                if self.doubt != Doubt::None {
                    self.is_truncated();
                    self.life_unknown(first);
                } else if first > self.next {
                    self.is_truncated();
                    self.lose_before(first);
                }
                self.drain();
                First::TakeIn
            }
        }
    }

    fn is_truncated(&mut self) {
        if let Phase::Repairing(repair) = &mut self.phase {
            repair.is_truncated = true;
        }
    }

    /// In a new life everything is asked for from its start.
    fn go_on_repairing(&mut self, now: Instant) {
        self.drain();
        self.finish_if_caught_up();
        if let Phase::Repairing(repair) = &self.phase {
            if repair.asks >= self.options.limits.asks_max {
                self.give_up(now);
            } else {
                self.ask(now);
            }
        }
    }

    /// The latest request did not bring everything: asks for the rest.
    fn ask_again(&mut self, now: Instant) {
        let limits = self.options.limits;
        let Phase::Repairing(repair) = &mut self.phase else { return };
        let has_brought = matches!(repair.request, Request::Asked { has_brought: true, .. });
        repair.fruitless = if has_brought { 0 } else { repair.fruitless + 1 };
        if repair.fruitless >= limits.fruitless_asks_max || repair.asks >= limits.asks_max {
            self.give_up(now);
        } else if has_brought {
            self.ask(now);
        } else {
            let doublings = (repair.fruitless - 1).min(16);
            repair.request = Request::Resting { until: now + limits.rest * (1 << doublings) };
            self.actions.push_back(Action::HangUp);
        }
    }

    fn ask(&mut self, now: Instant) {
        let deadline = now + self.options.limits.answer_deadline;
        let check = self.cursor;
        let from = check.map_or(0, |cursor| cursor.sequence);
        let Phase::Repairing(repair) = &mut self.phase else { return };
        self.attempts += 1;
        repair.attempt = self.attempts;
        repair.asks += 1;
        repair.request = Request::Asked { from, check, last: None, has_brought: false, deadline };
        self.actions.push_back(Action::Ask { attempt: self.attempts, from });
    }
}
