//! Simulated engine, network and caller of a stream, with the invariants that hold after every action.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use flash_indexer_wire::{
    Action, ClearReason, Cursor, DegradedReason, PendingReason, ReplaySupport, Start, Stream, StreamEvent,
    StreamLimits, StreamOptions, StreamPosition, StreamTrust,
};

/// Deadlines after which a repair has been given up: some five requests with their backoffs.
const DEADLINES_MAX: usize = 100;
/// Time in which messages that waited in a pause are received.
const BACKLOG: Duration = Duration::from_secs(20);
/// Pauses after which a repair that was given up each time has settled.
const PAUSES_MAX: usize = 3;

pub(crate) type Payload = Vec<u8>;

/// A pause of the service, in which the engine dropped messages.
#[derive(Debug)]
pub(crate) struct PausedAt {
    /// The last request before it.
    last_attempt: u32,
    /// Messages that are received from this time on show the dropped ones.
    shown_from: Instant,
    /// Messages published before its end.
    published: u64,
    /// Whether a reply has ended that was requested after it.
    is_replied: bool,
}

/// A message's payload: its epoch and its sequence number.
pub(crate) fn payload(epoch: u64, sequence: u64) -> Payload {
    [epoch.to_le_bytes(), sequence.to_le_bytes()].concat()
}

pub(crate) fn epoch_of(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload[..8].try_into().expect("eight bytes"))
}

/// An engine, the live and the replay channel to it, and the caller that executes the stream's actions.
pub(crate) struct World {
    pub(crate) stream: Stream<Payload>,
    pub(crate) now: Instant,
    pub(crate) limits: StreamLimits,
    pub(crate) replay: ReplaySupport,
    // The engine.
    pub(crate) epoch: u64,
    pub(crate) published: u64,
    pub(crate) buffer_max: u64,
    // The channels.
    pub(crate) connected: bool,
    pub(crate) in_flight: VecDeque<(u64, u64)>,
    /// When the messages of this epoch were published.
    pub(crate) published_at: Vec<Instant>,
    /// A message that waited longer than messages do ended the doubt of an earlier epoch. Applies to this state.
    pub(crate) is_misled: bool,
    /// The network dropped the last messages in flight, which the service cannot detect before the next one.
    pub(crate) is_tail_lost_unseen: bool,
    /// End of the messages of this epoch that the service received, dropped or not.
    pub(crate) known_end: u64,
    /// Messages that the stream has delivered.
    pub(crate) delivered: HashSet<(u64, u64)>,
    /// Live messages of this connection that were not dropped.
    pub(crate) received_live: HashSet<(u64, u64)>,
    /// Number of the last message that the service received, dropped or not: a new connection begins with it.
    pub(crate) last_received: Option<u64>,
    /// A late message was the last live one. A second one might continue it, as if the engine had restarted.
    pub(crate) is_last_late: bool,
    pub(crate) request: Option<(u32, u64)>,
    pub(crate) requests: usize,
    /// The last pause, until the dropped messages are known.
    pub(crate) doubted: Option<PausedAt>,
    pub(crate) last_attempt: u32,
    pub(crate) backlog_until: Instant,
    // The index.
    pub(crate) applied: Vec<(u64, u64)>,
    pub(crate) trust: StreamTrust,
    pub(crate) pending: Option<PendingReason>,
    pub(crate) cleared: Vec<ClearReason>,
    /// End of the messages that were recorded as lost since the state was cleared. A later doubt replaces that reason.
    pub(crate) recorded_end: Option<u64>,
    pub(crate) events: Vec<StreamEvent>,
}

pub(crate) fn limits() -> StreamLimits {
    StreamLimits { waiting_messages_max: 20, waiting_bytes_max: 18 * 16, cleared_loss_min: 8, ..Default::default() }
}

impl World {
    pub(crate) fn new(replay: ReplaySupport, start: Start, buffer_max: u64) -> Self {
        let limits = limits();
        Self {
            stream: Stream::new(StreamOptions { replay, start, limits }),
            now: Instant::now(),
            limits,
            replay,
            epoch: 0,
            published: 0,
            buffer_max,
            connected: false,
            in_flight: VecDeque::new(),
            published_at: Vec::new(),
            is_misled: false,
            is_tail_lost_unseen: false,
            known_end: 0,
            delivered: HashSet::new(),
            received_live: HashSet::new(),
            last_received: None,
            is_last_late: false,
            request: None,
            requests: 0,
            doubted: None,
            last_attempt: 0,
            backlog_until: Instant::now(),
            applied: Vec::new(),
            trust: StreamTrust::Cold,
            pending: Some(PendingReason::FirstContact),
            cleared: Vec::new(),
            recorded_end: None,
            events: Vec::new(),
        }
    }

    /// Executes the stream's actions and checks the invariants after each.
    pub(crate) fn run(&mut self) {
        while let Some(action) = self.stream.next_action() {
            match action {
                Action::Apply { sequence, payload } => {
                    assert_eq!(payload[8..], sequence.to_le_bytes());
                    self.applied.push((epoch_of(&payload), sequence));
                    self.delivered.insert((epoch_of(&payload), sequence));
                }
                Action::RequestReplay { attempt, from } => {
                    self.request = Some((attempt, from));
                    self.last_attempt = attempt;
                    self.requests += 1;
                }
                Action::CloseReplay => self.request = None,
                Action::Clear(why) => {
                    self.applied.clear();
                    self.is_misled = false;
                    self.recorded_end = None;
                    self.cleared.push(why);
                }
                Action::Trust(trust) => {
                    if let StreamTrust::Degraded(DegradedReason::Lost { next, .. }) = trust {
                        self.recorded_end = Some(next);
                    }
                    self.trust = trust;
                }
                Action::Pending(pending) => self.pending = pending,
                Action::Record(event) => self.events.push(event),
            }
            self.check();
        }
        if self.is_exact() {
            assert!(self.request.is_none(), "exact while a request is open");
            let is_shown = self.doubted.as_ref().is_none_or(|paused| paused.is_replied);
            assert!(is_shown, "exact, but messages dropped in a pause are missing");
            let known = (0..self.known_end).map(|sequence| (self.epoch, sequence)).collect::<Vec<_>>();
            assert!(
                self.is_misled || self.applied.starts_with(&known),
                "exact, but of {} known messages only {:?}",
                known.len(),
                self.applied
            );
        }
        assert!(self.stream.waiting_messages() <= self.limits.waiting_messages_max);
        assert!(self.stream.waiting_bytes() <= self.limits.waiting_bytes_max);
    }

    /// Whether the stream reports that no message is known to be missing.
    pub(crate) fn is_exact(&self) -> bool {
        self.trust == StreamTrust::Exact && self.pending.is_none()
    }

    pub(crate) fn check(&self) {
        let once: HashSet<_> = self.applied.iter().collect();
        assert_eq!(once.len(), self.applied.len(), "a message was applied twice: {:?}", self.applied);
        if self.trust == StreamTrust::Exact {
            let epoch = self.applied.first().map(|(epoch, _)| *epoch);
            for (at, message) in self.applied.iter().enumerate() {
                assert_eq!(Some(*message), epoch.map(|epoch| (epoch, at as u64)), "exact, but {:?}", self.applied);
            }
        }
        if self.trust == StreamTrust::Cold {
            assert!(self.applied.is_empty());
        }
    }

    pub(crate) fn publish(&mut self) {
        if self.connected {
            self.in_flight.push_back((self.epoch, self.published));
        }
        self.is_tail_lost_unseen &= !self.connected;
        self.published += 1;
        self.published_at.push(self.now);
    }

    /// The network drops the oldest message in flight.
    pub(crate) fn lose(&mut self) {
        if self.in_flight.pop_front().is_some() && self.in_flight.is_empty() {
            self.is_tail_lost_unseen = true;
        }
    }

    pub(crate) fn deliver(&mut self) {
        if let Some((epoch, sequence)) = self.in_flight.pop_front() {
            self.known_end = self.known_end_with(sequence);
            self.last_received = Some(sequence);
            self.received_live.insert((epoch, sequence));
            self.is_last_late = false;
            if let Some(paused) = self.doubted.take_if(|paused| self.now >= paused.shown_from) {
                // Messages that waited for longer than expected do not show the ones after them.
                let is_of_backlog = |last: u64| last < paused.published;
                self.is_tail_lost_unseen |= is_of_backlog(self.in_flight.back().map_or(sequence, |last| last.1));
            }
            self.receive(epoch, sequence);
        }
    }

    /// The stream receives a live message.
    fn receive(&mut self, epoch: u64, sequence: u64) {
        let was_doubted = self.stream.pending() == Some(PendingReason::Unverified);
        self.stream.live(sequence, payload(epoch, sequence), self.now);
        let published_at = self.published_at.get(sequence as usize).filter(|_| epoch == self.epoch);
        let has_waited = published_at.is_none_or(|&at| self.now >= at + BACKLOG);
        self.is_misled |= was_doubted && has_waited && self.stream.pending() != Some(PendingReason::Unverified);
        self.run();
    }

    /// The oldest message in flight reaches the service, which drops it or fails to decode it.
    pub(crate) fn drop_received(&mut self) {
        if let Some((_, sequence)) = self.in_flight.pop_front() {
            self.known_end = self.known_end_with(sequence);
            self.last_received = Some(sequence);
            self.stream.tail_lost(Some(sequence), self.now);
            self.run();
        }
    }

    /// The service is paused, and the engine drops the last messages in flight. The messages before them are received later.
    pub(crate) fn pause(&mut self, dropped: u8) {
        if !self.connected {
            return;
        }
        let kept = self.in_flight.len().saturating_sub(dropped.into());
        self.in_flight.truncate(kept);
        let shown_from = self.now + BACKLOG;
        self.doubted = Some(PausedAt {
            last_attempt: self.last_attempt,
            shown_from,
            published: self.published,
            is_replied: false,
        });
        self.backlog_until = shown_from;
        self.stream.tail_unverified(shown_from, self.now);
        self.run();
    }

    /// Passes the time in which messages that waited in a pause are received.
    pub(crate) fn pass_backlog(&mut self) {
        self.now = self.now.max(self.backlog_until);
    }

    /// The service receives a live message again: the applied one with this many after it. A message that an imported state
    /// covers was never compared, so it is left out.
    pub(crate) fn repeat(&mut self, later: u8) {
        if let Some(&(epoch, sequence)) = self.applied.iter().rev().nth(usize::from(later))
            && self.received_live.contains(&(epoch, sequence))
            && self.delivered.contains(&(epoch, sequence))
        {
            self.stream.live(sequence, payload(epoch, sequence), self.now);
            self.run();
        }
    }

    /// A forwarder delivers a message of the current epoch late: the one with this many received ones after it, if the
    /// connection brought it before, or brought no earlier one. As the first live message of a connection it looks
    /// like a restart.
    pub(crate) fn deliver_late(&mut self, later: u64) {
        let Some(sequence) = self.known_end.checked_sub(later + 1) else { return };
        let of_epoch = self.received_live.iter().filter(|(epoch, _)| *epoch == self.epoch);
        let Some(first) = of_epoch.map(|&(_, sequence)| sequence).min() else { return };
        let is_late = sequence < first || self.received_live.contains(&(self.epoch, sequence));
        if is_late && !self.is_last_late {
            self.is_last_late = true;
            self.receive(self.epoch, sequence);
        }
    }

    pub(crate) fn connect(&mut self) {
        if !self.connected {
            self.connected = true;
            if self.replay == ReplaySupport::OnReconnect
                && let Some(last) = self.last_received
                && last < self.published
            {
                let first = last.max(self.published.saturating_sub(self.buffer_max));
                self.in_flight = (first..self.published).map(|sequence| (self.epoch, sequence)).collect();
                self.is_tail_lost_unseen = false;
            }
            self.stream.connected(self.now);
            self.run();
        }
    }

    /// End of the received messages with one more. A new connection repeats messages.
    fn known_end_with(&self, sequence: u64) -> u64 {
        match self.replay {
            ReplaySupport::OnReconnect => self.known_end.max(sequence + 1),
            ReplaySupport::Available | ReplaySupport::Unavailable => sequence + 1,
        }
    }

    pub(crate) fn disconnect(&mut self) {
        if self.connected {
            self.connected = false;
            if self.stream.position().cursor.is_none() {
                // The received messages may be of another epoch than those of the next connection.
                self.known_end = 0;
            }
            self.in_flight.clear();
            self.received_live.clear();
            self.is_last_late = false;
            self.is_tail_lost_unseen = false;
            self.doubted = None;
            self.stream.disconnected();
            self.run();
        }
    }

    pub(crate) fn restart(&mut self) {
        self.disconnect();
        self.epoch += 1;
        self.published = 0;
        self.published_at.clear();
        self.known_end = 0;
        self.is_tail_lost_unseen = false;
    }

    /// Replies to the open request without the messages whose bit is not set; the last bit is the end marker's.
    pub(crate) fn reply(&mut self, kept: u64) {
        let Some((attempt, from)) = self.request else { return };
        let first = from.max(self.published.saturating_sub(self.buffer_max));
        for sequence in first..self.published {
            if kept >> (sequence % 63) & 1 == 1 {
                self.stream.replayed(attempt, sequence, payload(self.epoch, sequence), self.now);
                self.run();
            }
        }
        if kept >> 63 == 1 {
            let is_last_lost = first < self.published && kept >> ((self.published - 1) % 63) & 1 == 0;
            // The reply lost its last message and still ends. Unless the service received that message, only the next live
            // message can show the loss.
            self.is_tail_lost_unseen |= is_last_lost && self.known_end < self.published;
            if let Some(paused) = &mut self.doubted {
                paused.is_replied |= attempt > paused.last_attempt;
            }
            self.stream.replay_ended(attempt, self.now);
            self.run();
        }
    }

    /// Passes the deadlines until a repair is given up, and messages after the last one count as missing.
    pub(crate) fn pass_time_until_given_up(&mut self) {
        for _ in 0..DEADLINES_MAX {
            if self.request.is_none() && matches!(self.pending, Some(PendingReason::TailLost)) {
                return;
            }
            self.pass_time();
        }
        panic!("request {:?}, pending {:?} after {DEADLINES_MAX} deadlines", self.request, self.pending);
    }

    /// Advances the clock to the stream's next deadline.
    pub(crate) fn pass_time(&mut self) {
        if let Some(wake) = self.stream.wakes_at() {
            self.now = self.now.max(wake);
            self.stream.tick(self.now);
            self.run();
        }
    }

    /// Publishes one more message and delivers all messages until no request is open.
    pub(crate) fn settle_with_message(&mut self) {
        self.connect();
        self.publish();
        self.settle();
    }

    /// Delivers all messages until no request is open. After a restart that no reply shows, the publisher may never reach a
    /// number again. Only live messages end that doubt: the repair is given up and begun again after each pause. The same
    /// applies to the request for the history of a publisher that has none.
    pub(crate) fn settle(&mut self) {
        self.connect();
        let mut pauses = 0;
        for _ in 0..2_000 {
            self.deliver();
            self.reply(u64::MAX);
            if self.in_flight.is_empty() && self.request.is_none() {
                let Some(wake) = self.stream.wakes_at() else { return };
                if matches!(self.pending, Some(PendingReason::TailLost | PendingReason::Unverified) | None)
                    && wake >= self.now + self.limits.repair_pause / 2
                {
                    pauses += 1;
                    if pauses == PAUSES_MAX {
                        // The state is cleared because of numbers that never arrive, and rebuilt with the next request.
                        let is_cleared =
                            self.applied.is_empty() && self.cleared.last() == Some(&ClearReason::TooMuchLost);
                        // Or the loss of the last messages was recorded, and a reply without message 0 has shown the history as gone.
                        let is_recorded = self.recorded_end == Some(self.published);
                        assert!(
                            is_cleared || is_recorded || self.applied.last() == self.whole_epoch().last(),
                            "the publisher has a later message"
                        );
                        assert!(!self.is_exact());
                        return;
                    }
                }
                self.pass_time();
            }
        }
        panic!("the stream does not settle: {:?}", self.stream);
    }

    /// Whether a request is open, or follows after a backoff.
    pub(crate) fn is_repairing(&self) -> bool {
        self.request.is_some() || matches!(self.pending, Some(PendingReason::Recovering { .. }))
    }

    /// Answers every request with all messages, until the stream pauses.
    pub(crate) fn settle_until_pause(&mut self) {
        while self.is_repairing() {
            self.reply(u64::MAX);
            if self.request.is_none() && self.is_repairing() {
                self.pass_time();
            }
        }
    }

    /// A settled exact stream has delivered all messages, unless the network dropped the last ones undetected.
    pub(crate) fn check_whole(&self) {
        if self.is_exact() && !self.is_tail_lost_unseen && !self.is_misled {
            assert_eq!(self.applied, self.whole_epoch());
        }
    }

    pub(crate) fn whole_epoch(&self) -> Vec<(u64, u64)> {
        (0..self.published).map(|sequence| (self.epoch, sequence)).collect()
    }

    /// Position of an observer that has received every message.
    pub(crate) fn true_position(&self) -> StreamPosition {
        let last = self.published.checked_sub(1);
        let cursor = last.map(|last| Cursor::new(last, &payload(self.epoch, last)));
        let trust = if last.is_some() { StreamTrust::Exact } else { StreamTrust::Cold };
        StreamPosition { cursor, epoch: self.epoch + 1, trust }
    }
}

pub(crate) fn degraded(trust: StreamTrust) -> Option<DegradedReason> {
    match trust {
        StreamTrust::Degraded(why) => Some(why),
        _ => None,
    }
}
