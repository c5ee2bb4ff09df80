//! What a stream is followed with.

use std::time::Duration;

/// Whether the publisher can be asked for messages that were missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// It has a replay endpoint.
    Available,
    /// It has none: what is missed is lost.
    Unavailable,
}

/// When a stream starts to hand out messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// From the first one.
    AtOnce,
    /// When it is released: until then they wait.
    Held,
}

/// Bounds of one stream. The defaults suit an engine that keeps 10,000 batches for replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// Messages that may wait while earlier ones are asked for.
    pub waiting_messages_max: usize,
    /// Bytes of payload that may wait.
    pub waiting_bytes_max: usize,
    /// Requests one after the other that bring nothing new before the rest is given up.
    pub fruitless_asks_max: u32,
    /// Requests for one repair, fruitful or not.
    pub asks_max: u32,
    /// Longest silence within an answer.
    pub answer_deadline: Duration,
    /// Rest after the first fruitless request; doubled after each further one.
    pub rest: Duration,
    /// After a repair was given up, gaps are not repaired for so long: an endpoint that does not
    /// answer must not hold the stream up at every gap.
    pub quiet: Duration,
    /// How long messages wait for the number at which another observer of the stream had stopped.
    pub overlap_deadline: Duration,
    /// Messages lost at once from which on what was known is forgotten.
    pub lost_forgotten_min: u64,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            waiting_messages_max: 1 << 16,
            waiting_bytes_max: 64 << 20,
            fruitless_asks_max: 5,
            asks_max: 200,
            answer_deadline: Duration::from_secs(2),
            rest: Duration::from_millis(100),
            quiet: Duration::from_secs(30),
            overlap_deadline: Duration::from_secs(5),
            lost_forgotten_min: 1_000,
        }
    }
}

/// What a stream is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    /// Whether missed messages can be asked for.
    pub replay: Replay,
    /// Whether messages wait for a release first.
    pub start: Start,
    /// Its bounds.
    pub limits: StreamLimits,
}
