//! Epochs that seem to have ended. The state of such an epoch is kept until its end is proven.

use std::time::{Duration, Instant};

use super::delivered::{Comparison, Delivered};
use super::{EpochCheck, Stream};

/// Longest time that live messages wait in queues and sockets.
const BACKLOG: Duration = Duration::from_secs(20);

/// An epoch that has probably ended: a reply had none of its messages, or a live message had a lower number.
///
/// The epoch may also continue: the publisher may have lost messages of the reply, or the live message may have arrived late. In
/// that case the stream lacks the messages of this epoch. So the stream is not exact until one of these holds:
///
/// * A message differs from the message of this epoch with the same number. Then the epoch has ended.
/// * A new live message arrives: this epoch had no such message, and no replay has delivered it since. A publisher counts upwards, so
///   the number of the message shows which messages are missing, or belongs to a new epoch. A message that continues this epoch's live
///   messages below `end` counts only if it arrives more than [`BACKLOG`] after the doubt began, since it may have waited in a queue
///   while a reply or an imported position was ahead of it.
/// * The messages of this epoch are delivered again.
#[derive(Debug)]
pub(super) struct EarlierEpoch {
    /// Its received messages. Without any, no message differs from it: a difference from an earlier epoch ends only that one.
    messages: Delivered,
    /// One more than the highest number known.
    end: u64,
    /// One more than the highest number of its live messages: the next ones continue it, and a reply may have been ahead of them.
    live_end: u64,
    /// When the doubt began, at the latest: live messages that are published later do not continue this epoch.
    doubted_since: Option<Instant>,
}

impl EarlierEpoch {
    /// Merges this epoch with an earlier one, which may be the same.
    fn after(mut self, before: Option<Self>) -> Self {
        let Some(before) = before else { return self };
        self.end = self.end.max(before.end);
        self.live_end = self.live_end.min(before.live_end);
        self.doubted_since = None;
        self
    }

    /// Records the time when a connection begins after the messages of this epoch, or a live message does not end the
    /// doubt. Returns when the doubt began.
    pub(super) fn begin_doubt(&mut self, now: Instant) -> Instant {
        *self.doubted_since.get_or_insert(now)
    }
}

impl<P: AsRef<[u8]>> Stream<P> {
    /// Takes the state of the current epoch before another one seems to begin: its messages, and the numbers before
    /// `known_end`.
    pub(super) fn take_epoch(&mut self, known_end: u64, now: Instant) -> EarlierEpoch {
        let messages = std::mem::take(&mut self.delivered);
        let lost = self.lost_tail.map_or(0, |lost| lost.end());
        let known = EarlierEpoch {
            messages,
            end: known_end.max(self.next).max(lost),
            live_end: known_end,
            doubted_since: None,
        };
        let known = known.after(self.earlier_epoch.take());
        let taken = match self.unverified.take() {
            Some(unverified) => unverified.after(Some(known)),
            None => known,
        };
        EarlierEpoch { doubted_since: Some(now), ..taken }
    }

    /// Keeps the state that a connection's live messages show when it ends, if the cursor's epoch was not verified on it.
    pub(super) fn keep_unverified(&mut self) {
        if !self.is_live_unverified() {
            self.unverified = None;
            return;
        }
        let lost = self.lost_tail.map_or(0, |lost| lost.connection_end());
        let end = self.live_end().unwrap_or_default().max(lost);
        if end > 0 {
            let messages = std::mem::take(&mut self.undelivered);
            let live_end = self.live_end().unwrap_or_default();
            let known = EarlierEpoch { messages, end, live_end, doubted_since: None };
            self.unverified = Some(known.after(self.unverified.take()));
        }
    }

    /// Whether the live messages of this connection may be of another epoch than the delivered ones.
    pub(super) fn is_live_unverified(&self) -> bool {
        self.epoch_check != EpochCheck::Verified && self.cursor.is_some()
    }

    /// Forgets the earlier epoch if a message differs from its message of that number.
    pub(super) fn compare_earlier_epoch(&mut self, sequence: u64, payload: &P) {
        self.earlier_epoch
            .take_if(|earlier| earlier.messages.compare(sequence, payload.as_ref()) == Comparison::Different);
    }

    /// Forgets the earlier epoch if this live message is new ([`EarlierEpoch`]). A message that the earlier epoch had, or
    /// that a replay has delivered since, may have arrived again. A message that continues the live messages of the earlier
    /// epoch may have waited in a queue, unless it arrives long after the doubt began.
    pub(super) fn end_earlier_epoch(&mut self, sequence: u64, payload: &P, now: Instant) {
        let compare = |messages: &Delivered| messages.compare(sequence, payload.as_ref());
        let is_repeated = compare(&self.delivered) == Comparison::Same;
        self.earlier_epoch.take_if(|earlier| match compare(&earlier.messages) {
            Comparison::Same => false,
            Comparison::Different => true,
            Comparison::Unknown if is_repeated => false,
            Comparison::Unknown if !(earlier.live_end..earlier.end).contains(&sequence) => true,
            Comparison::Unknown => now >= earlier.begin_doubt(now) + BACKLOG,
        });
    }

    /// Whether known messages are missing if the earlier epoch has not ended. Without a delivered message nothing is in
    /// doubt: the stream is not exact.
    pub(super) fn may_lack_earlier_messages(&self) -> bool {
        self.cursor.is_some() && self.earlier_epoch.as_ref().is_some_and(|earlier| self.next < earlier.end)
    }
}
