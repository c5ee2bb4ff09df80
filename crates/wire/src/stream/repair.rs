//! Repair of a gap: requests for missing messages.

use std::time::Instant;

use super::action::{Action, ReplayOutcome, StreamEvent};
use super::delivered::Comparison;
use super::{EpochCheck, Phase, Stream};
use crate::cursor::Cursor;

/// One repair: requests until no message is missing, or until it is given up.
#[derive(Debug)]
pub(super) struct Repair {
    attempt: u32,
    requests: u32,
    /// Consecutive requests without progress.
    failed_requests: u32,
    /// The publisher's replay buffer no longer had all missing messages.
    is_truncated: bool,
    purpose: Purpose,
    request: Request,
}

/// Purpose of a repair's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The messages after the cursor.
    Gap,
    /// The whole history; no message of it has arrived yet.
    History,
    /// All messages, after an empty reply: they are compared with the delivered ones before the state is cleared.
    Epoch,
}

#[derive(Debug)]
enum Request {
    Sent {
        from: u64,
        /// Cursor that the reply must start with, if the epoch continues.
        check: Option<Cursor>,
        /// Sequence number of the reply's latest message.
        last: Option<u64>,
        made_progress: bool,
        deadline: Instant,
    },
    BackingOff {
        until: Instant,
    },
}

impl Repair {
    /// A repair that requests the messages after the cursor.
    fn of_gap(now: Instant) -> Self {
        let request = Request::BackingOff { until: now };
        Self { attempt: 0, requests: 0, failed_requests: 0, is_truncated: false, purpose: Purpose::Gap, request }
    }

    /// A repair that requests all messages.
    pub(super) fn of_history(now: Instant) -> Self {
        Self { purpose: Purpose::History, ..Self::of_gap(now) }
    }

    pub(super) fn wakes_at(&self) -> Instant {
        match self.request {
            Request::Sent { deadline, .. } => deadline,
            Request::BackingOff { until } => until,
        }
    }
}

/// Result of comparing a message of a reply with the delivered ones.
enum ReplyHandling {
    /// The message is to be applied like any other.
    Apply,
    /// The message needs no further handling.
    Handled,
}

impl<P: AsRef<[u8]>> Stream<P> {
    /// Handles a message of a reply.
    pub fn replayed(&mut self, attempt: u32, sequence: u64, payload: P, now: Instant) {
        let reply_deadline = self.options.limits.reply_deadline;
        let Some(Request::Sent { from, check, last, deadline, .. }) = self.request(attempt) else { return };
        if sequence < *from || last.is_some_and(|last| sequence <= last) {
            // The reply does not match the request.
            return self.retry(now);
        }
        *deadline = now + reply_deadline;
        let (is_first, check) = (last.replace(sequence).is_none(), *check);
        self.compare_earlier_epoch(sequence, &payload);
        if is_first && self.cursor.is_none() && !self.has_live {
            // Without a delivered message nothing shows that the live messages of an earlier connection belong to this epoch, whose
            // live messages count from zero.
            self.live_floor = 0;
        }
        if self.has_purpose(Purpose::History) {
            self.set_purpose(Purpose::Gap);
            if !self.begin_history(sequence, now) {
                return;
            }
        }
        if self.has_purpose(Purpose::Epoch)
            && let ReplyHandling::Handled = self.compare_epoch(sequence, &payload, now)
        {
            return;
        }
        if is_first && let ReplyHandling::Handled = self.handle_first(check, sequence, &payload, now) {
            return;
        }
        if sequence == self.next {
            self.record_progress();
            self.apply(sequence, payload);
            self.drain();
        } else if sequence > self.next && self.waiting.get(sequence).is_none() && self.has_room(&payload) {
            self.record_progress();
            self.waiting.insert(sequence, payload);
        } else if sequence > self.next && self.waiting.get(sequence).is_none() {
            self.record_shown(sequence.saturating_add(1));
        }
        self.finish_if_caught_up();
    }

    /// Handles the end of a reply, as the publisher marks it.
    pub fn replay_ended(&mut self, attempt: u32, now: Instant) {
        let Some(Request::Sent { check, last, .. }) = self.request(attempt) else { return };
        let (last, check) = (*last, *check);
        if self.has_purpose(Purpose::History) {
            return self.fail_history(now);
        }
        match (last, check) {
            // Either the publisher has published fewer messages in this epoch, or it lost the whole reply. If the connection was
            // never lost, the epoch continues and its replay buffer is empty.
            (None, Some(_)) if self.epoch_check != EpochCheck::Verified => {
                self.set_purpose(Purpose::Epoch);
                self.request_more(now);
            }
            _ if self.has_purpose(Purpose::Epoch) => {
                self.set_purpose(Purpose::Gap);
                let earlier = self.take_epoch(self.live_floor, now);
                self.begin_epoch();
                self.earlier_epoch = Some(earlier);
                if let Some(last) = last {
                    self.record_shown(last.saturating_add(1));
                }
                self.continue_repair(now);
            }
            (None, Some(_)) => self.retry(now),
            _ if !self.is_behind_live() => {
                self.record_end(self.next);
                let next = self.next;
                if self.lost_tail.take_if(|lost| lost.is_before(attempt) && next >= lost.end()).is_some() {
                    self.tail_repair_at = Some(now + self.options.limits.backoff_min);
                }
                match self.lost_tail {
                    None => {
                        if self.may_lack_earlier_messages() {
                            // Another reply may have the messages that this one has lost.
                            self.tail_repair_at = Some(now + self.options.limits.repair_pause);
                        }
                        self.end_whole_repair();
                    }
                    // The reply lacks a message that was seen.
                    Some(lost) if lost.is_before(attempt) => self.retry(now),
                    // The reply need not contain messages lost after the request was sent.
                    Some(_) => self.continue_repair(now),
                }
            }
            _ => self.retry(now),
        }
    }

    /// Handles a reply that cannot be decoded, or a failed socket.
    pub fn replay_failed(&mut self, attempt: u32, now: Instant) {
        if self.request(attempt).is_some() {
            self.retry(now);
        }
    }

    pub(super) fn start_repair(&mut self, now: Instant) {
        self.start(Repair::of_gap(now), now);
    }

    pub(super) fn start(&mut self, repair: Repair, now: Instant) {
        let from = self.cursor.filter(|_| repair.purpose == Purpose::Gap).map_or(0, |cursor| cursor.sequence);
        self.phase = Phase::Repairing(repair);
        self.record(StreamEvent::ReplayStarted { from, end: self.live_end() });
        self.send_request(now);
    }

    /// Handles a reply that timed out, or the end of a backoff.
    pub(super) fn repair_overdue(&mut self, now: Instant) {
        let Phase::Repairing(repair) = &self.phase else { return };
        match repair.request {
            Request::Sent { .. } => self.retry(now),
            Request::BackingOff { .. } => self.send_request(now),
        }
    }

    pub(super) fn finish_if_caught_up(&mut self) {
        let is_whole = self.epoch_check == EpochCheck::Verified && self.has_live && !self.is_behind();
        if matches!(self.phase, Phase::Repairing(_)) && !self.has_purpose(Purpose::History) && is_whole {
            self.end_whole_repair();
        }
    }

    pub(super) fn end_repair(&mut self, outcome: ReplayOutcome) {
        self.phase = Phase::Delivering;
        self.actions.push_back(Action::CloseReplay);
        self.record(StreamEvent::Replay(outcome));
    }

    pub(super) fn give_up(&mut self, now: Instant) {
        self.repairs_paused_until = Some(now + self.options.limits.repair_pause);
        self.tail_repair_at = self.repairs_paused_until;
        self.plan_history(now);
        if !self.has_live {
            // No reply was complete, and no live message shows where it should have ended.
            self.record_lost_tail(None);
        }
        self.end_repair(ReplayOutcome::GivenUp);
        self.advance_without_replay(now);
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

    fn has_purpose(&self, purpose: Purpose) -> bool {
        matches!(&self.phase, Phase::Repairing(repair) if repair.purpose == purpose)
    }

    fn set_purpose(&mut self, purpose: Purpose) {
        if let Phase::Repairing(repair) = &mut self.phase {
            repair.purpose = purpose;
        }
    }

    /// Compares a message of a reply that shows whether the epoch continues.
    fn compare_epoch(&mut self, sequence: u64, payload: &P, now: Instant) -> ReplyHandling {
        self.verify_overlap();
        if self.epoch_check == EpochCheck::Verified {
            self.set_purpose(Purpose::Gap);
            return ReplyHandling::Apply;
        }
        match self.delivered.compare(sequence, payload.as_ref()) {
            Comparison::Unknown => return ReplyHandling::Handled,
            Comparison::Same => {
                self.set_purpose(Purpose::Gap);
                self.epoch_check = EpochCheck::Verified;
                self.drain();
                self.finish_if_caught_up();
                return ReplyHandling::Handled;
            }
            Comparison::Different => {}
        }
        self.record(StreamEvent::Mismatch { sequence });
        self.set_purpose(Purpose::Gap);
        self.begin_epoch();
        if sequence == 0 {
            return ReplyHandling::Apply;
        }
        self.record_shown(sequence.saturating_add(1));
        self.continue_repair(now);
        ReplyHandling::Handled
    }

    fn record_progress(&mut self) {
        if let Phase::Repairing(Repair { request: Request::Sent { made_progress, .. }, .. }) = &mut self.phase {
            *made_progress = true;
        }
    }

    /// Compares the first message of a reply with the cursor.
    fn handle_first(&mut self, check: Option<Cursor>, sequence: u64, payload: &P, now: Instant) -> ReplyHandling {
        self.verify_overlap();
        if check.is_some() && self.cursor.is_none() {
            self.continue_repair(now);
            return ReplyHandling::Handled;
        }
        match check {
            Some(check) if sequence == check.sequence => {
                if Cursor::new(sequence, payload.as_ref()) == check {
                    self.epoch_check = EpochCheck::Verified;
                    self.drain();
                    self.finish_if_caught_up();
                } else {
                    if self.epoch_check == EpochCheck::Verified {
                        // The live messages may belong to the previous epoch; the replay has the messages of the
                        // current one, up to an end that no live message shows.
                        self.waiting.clear();
                        self.live_floor = 0;
                        self.has_live = false;
                    }
                    self.record(StreamEvent::Mismatch { sequence });
                    self.begin_epoch();
                    self.record_shown(sequence.saturating_add(1));
                    self.continue_repair(now);
                }
                ReplyHandling::Handled
            }
            _ => {
                let first = self.waiting.first().map_or(sequence, |waiting| waiting.min(sequence));
                if self.epoch_check != EpochCheck::Verified {
                    self.mark_truncated();
                    self.discard_unknown_epoch(first, now);
                } else if first > self.next {
                    self.mark_truncated();
                    self.record_loss_before(first);
                } else if first < self.next && self.cursor.is_none() {
                    if first > 0 {
                        self.mark_truncated();
                    }
                    self.begin_at(first);
                }
                self.drain();
                ReplyHandling::Apply
            }
        }
    }

    fn mark_truncated(&mut self) {
        if let Phase::Repairing(repair) = &mut self.phase {
            repair.is_truncated = true;
        }
    }

    /// Continues a repair; in a new epoch from its start.
    fn continue_repair(&mut self, now: Instant) {
        self.drain();
        self.finish_if_caught_up();
        self.request_more(now);
    }

    /// Sends the next request of a repair that has not ended, if it may send one.
    fn request_more(&mut self, now: Instant) {
        if let Phase::Repairing(repair) = &self.phase {
            if repair.requests >= self.options.limits.requests_max {
                self.give_up(now);
            } else {
                self.send_request(now);
            }
        }
    }

    /// Requests the rest after an incomplete reply.
    fn retry(&mut self, now: Instant) {
        let limits = self.options.limits;
        if self.has_purpose(Purpose::History) {
            return self.fail_history(now);
        }
        let Phase::Repairing(repair) = &mut self.phase else { return };
        let made_progress = matches!(repair.request, Request::Sent { made_progress: true, .. });
        repair.failed_requests = if made_progress { 0 } else { repair.failed_requests + 1 };
        if repair.failed_requests >= limits.failed_requests_max || repair.requests >= limits.requests_max {
            self.give_up(now);
        } else if made_progress {
            self.send_request(now);
        } else {
            let doublings = (repair.failed_requests - 1).min(16);
            repair.request = Request::BackingOff { until: now + limits.backoff_min * (1 << doublings) };
            self.actions.push_back(Action::CloseReplay);
        }
    }

    fn send_request(&mut self, now: Instant) {
        let deadline = now + self.options.limits.reply_deadline;
        let check = self.cursor.filter(|_| self.has_purpose(Purpose::Gap));
        let from = check.map_or(0, |cursor| cursor.sequence);
        let Phase::Repairing(repair) = &mut self.phase else { return };
        self.attempts += 1;
        repair.attempt = self.attempts;
        repair.requests += 1;
        repair.request = Request::Sent { from, check, last: None, made_progress: false, deadline };
        self.actions.push_back(Action::RequestReplay { attempt: self.attempts, from });
    }
}
