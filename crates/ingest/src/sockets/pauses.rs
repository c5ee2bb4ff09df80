//! Pauses of this process, in which engines drop messages.

use std::time::{Duration, Instant};

use tracing::warn;

/// Time between two turns of a socket thread, which waits for a second at most, from which on the process stood still: it was
/// stopped, its machine was paused, or it had no processor.
const PAUSE_MIN: Duration = Duration::from_secs(2);

/// Times after a pause at which the ends of streams are in doubt: at once, and when the messages that waited in queues and
/// sockets have been read. One of these ends the doubt if it arrives in order, and says nothing about those behind it.
const DOUBTS_AFTER: [Duration; 3] = [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(20)];

/// Finds the pauses of a thread. An engine's socket has a bound and drops what is beyond it, so after a pause the last messages of
/// a stream may be missing although its connection was never lost. Nothing shows that before the next message.
pub(super) struct Pauses {
    last_turn: Instant,
    /// When the next doubts are due.
    due: Vec<Instant>,
}

impl Pauses {
    pub(super) fn new(now: Instant) -> Self {
        Self { last_turn: now, due: Vec::new() }
    }

    /// Records a turn of the thread, and logs the pause before it, if there was one. Returns whether the ends of all streams are in
    /// doubt now.
    pub(super) fn turn(&mut self, now: Instant) -> bool {
        let pause = now.saturating_duration_since(std::mem::replace(&mut self.last_turn, now));
        if pause >= PAUSE_MIN {
            self.due = DOUBTS_AFTER.map(|after| now + after).into();
            warn!(
                seconds = pause.as_secs(),
                "this process stood still; engines may have dropped messages meanwhile: requesting the last ones"
            );
        }
        let before = self.due.len();
        self.due.retain(|due| now < *due);
        self.due.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubts_follow_a_pause_at_once_and_when_queues_are_read() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pauses = Pauses::new(start);
        assert!(!pauses.turn(at(1)));
        assert!(pauses.turn(at(16)), "it stood still for 15 s");
        let doubts = (17..60).filter(|&second| pauses.turn(at(second)));
        assert_eq!(doubts.collect::<Vec<_>>(), [18, 36]);
    }
}
