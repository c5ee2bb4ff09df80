//! Settings of a stream.

use std::time::Duration;

/// Whether the publisher replays missing messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplaySupport {
    /// The publisher has a replay endpoint.
    Available,
    /// The publisher has none. A new connection begins with the cursor's message, if the publisher still has it: that message
    /// shows whether the epoch continues, and nothing after it is missing.
    OnReconnect,
    /// The publisher has none: missing messages are lost.
    Unavailable,
}

/// Time of the first delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Messages are delivered from the first one on.
    Immediate,
    /// Messages wait until the stream is released.
    Paused,
}

/// Limits of one stream. The defaults suit an engine with a replay buffer of 10,000 batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// Messages that may wait during a repair.
    pub waiting_messages_max: usize,
    /// Payload bytes that may wait during a repair.
    pub waiting_bytes_max: usize,
    /// Consecutive requests without progress before a repair is given up.
    pub failed_requests_max: u32,
    /// Requests in one repair, with or without progress.
    pub requests_max: u32,
    /// Longest pause between two messages of a reply.
    pub reply_deadline: Duration,
    /// Backoff after the first request without progress; doubled after each further one.
    pub backoff_min: Duration,
    /// Pause after a repair was given up, during which gaps are not repaired: an endpoint that does not respond must
    /// not stall the stream at every gap.
    pub repair_pause: Duration,
    /// Longest wait for the live messages to reach an imported position.
    pub overlap_deadline: Duration,
    /// Number of messages lost at once from which on the derived state is cleared.
    pub cleared_loss_min: u64,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            waiting_messages_max: 1 << 16,
            waiting_bytes_max: 64 << 20,
            failed_requests_max: 5,
            requests_max: 200,
            reply_deadline: Duration::from_secs(2),
            backoff_min: Duration::from_millis(100),
            repair_pause: Duration::from_secs(30),
            overlap_deadline: Duration::from_secs(5),
            cleared_loss_min: 1_000,
        }
    }
}

/// Settings of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    /// Whether missing messages can be requested.
    pub replay: ReplaySupport,
    /// Whether messages wait for a release first.
    pub start: Start,
    /// Limits of the stream.
    pub limits: StreamLimits,
}
