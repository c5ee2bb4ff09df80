//! Pauses of this process, in which engines drop messages.

use std::time::{Duration, Instant};

use tracing::warn;

/// Shortest time between two turns of a socket thread that counts as a pause of the process: it was stopped, its machine was suspended,
/// or it had no processor. The thread itself waits for a second at most.
const PAUSE_MIN: Duration = Duration::from_secs(2);

/// Time after a pause in which the service reads the messages that waited in queues and sockets. Their numbers do not show whether an
/// engine dropped later ones.
const BACKLOG: Duration = Duration::from_secs(20);
/// Times after a pause at which the ends of streams are marked as unverified. An engine drops messages until its queue has drained.
/// The reply to the request after a mark contains only messages that were published before it.
const TAILS_UNVERIFIED_AFTER: [Duration; 3] = [Duration::ZERO, Duration::from_secs(2), BACKLOG];

/// Detector of a thread's pauses. An engine's socket drops messages beyond its limit: after a pause, the last messages of a
/// stream may be missing although its connection was never lost. Only the next message shows this.
pub(super) struct PauseDetector {
    last_turn: Instant,
    /// [`suspended`] at that turn.
    suspended: Duration,
    /// Times of the next marks.
    due: Vec<Instant>,
    /// Time when the messages that waited in the last pause have been read.
    read_at: Instant,
}

impl PauseDetector {
    pub(super) fn new(now: Instant) -> Self {
        Self { last_turn: now, suspended: suspended(), due: Vec::new(), read_at: now }
    }

    /// Records a turn of the thread, and logs the pause before it, if there was one. If the ends of all streams are unverified now,
    /// returns from which time on received messages were published after the pause.
    pub(super) fn turn(&mut self, now: Instant) -> Option<Instant> {
        self.turn_at(now, suspended())
    }

    fn turn_at(&mut self, now: Instant, suspended: Duration) -> Option<Instant> {
        let waited = now.saturating_duration_since(std::mem::replace(&mut self.last_turn, now));
        let pause = waited + suspended.saturating_sub(std::mem::replace(&mut self.suspended, suspended));
        if pause >= PAUSE_MIN {
            self.due = TAILS_UNVERIFIED_AFTER.map(|after| now + after).into();
            self.read_at = now + BACKLOG;
            warn!(
                seconds = pause.as_secs(),
                "this process was paused; engines may have dropped messages: requesting the last ones"
            );
        }
        let before = self.due.len();
        self.due.retain(|due| now < *due);
        (self.due.len() < before).then_some(self.read_at)
    }
}

/// Time for which the machine has been suspended since its start, which the clock of [`Instant`] leaves out.
#[cfg(target_os = "linux")]
fn suspended() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    let monotonic = read(ClockId::Monotonic);
    read(ClockId::Boottime).saturating_sub(monotonic)
}

/// Other systems do not report it.
#[cfg(not(target_os = "linux"))]
fn suspended() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_follow_a_pause_at_once_and_when_queues_are_read() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pauses = PauseDetector::new(start);
        let mut turn = |second, suspended| {
            let before = pauses.suspended;
            pauses.turn_at(at(second), before + Duration::from_secs(suspended))
        };
        assert_eq!(turn(1, 0), None);
        assert_eq!(turn(16, 0), Some(at(36)), "it stood still for 15 s");
        let marks = (17..60).filter_map(|second| turn(second, 0).map(|from| (second, from)));
        assert_eq!(marks.collect::<Vec<_>>(), [(18, at(36)), (36, at(36))]);
        assert_eq!(turn(60, 300), Some(at(80)), "the machine was suspended for 5 min");
    }
}
