//! A place in a publisher's stream that can be recognised again.

use xxhash_rust::xxh3::xxh3_64;

/// The last message of a stream that was taken in: its number, and a digest of what it said.
///
/// Numbers alone do not tell one life of an engine from the next, which counts from zero again; a
/// batch carries the time at which it was made, so two lives do not give one number the same payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The message's number.
    pub sequence: u64,
    /// XXH3-64 of the message's payload.
    pub payload_digest: u64,
}

impl Cursor {
    /// The cursor after a message. Cost: one pass over the payload.
    #[must_use]
    pub fn new(sequence: u64, payload: &[u8]) -> Self {
        Self { sequence, payload_digest: xxh3_64(payload) }
    }
}
