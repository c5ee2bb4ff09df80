//! Position in a publisher's stream.

use xxhash_rust::xxh3::xxh3_64;

/// Position after one message of a stream: the message's sequence number and a digest of its payload.
///
/// A sequence number alone does not identify an epoch, because every epoch counts from zero. A batch carries its
/// creation time, so two epochs do not publish equal payloads under one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The message's sequence number.
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
