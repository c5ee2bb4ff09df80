//! The frames of published and replayed messages.

/// A live message: `[topic, sequence, payload]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveMessage<'a> {
    /// What the publisher calls its stream; opaque.
    pub topic: &'a [u8],
    /// Number of the message in the publisher's life, from zero.
    pub sequence: u64,
    /// The batch, in MessagePack.
    pub payload: &'a [u8],
}

/// The frames are not those of a live message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another number of frames.
    #[error("expected 3 frames (topic, sequence, payload), got {count}")]
    Count {
        /// How many there were.
        count: usize,
    },
    /// Too few frames for a replayed message.
    #[error("expected at least 2 frames (…, sequence, payload) in an answer to a replay request, got {count}")]
    ReplayCount {
        /// How many there were.
        count: usize,
    },
    /// The sequence is not a 64-bit integer.
    #[error("expected a sequence number of 8 bytes, got {len}")]
    SequenceLength {
        /// How many bytes there were.
        len: usize,
    },
}

impl FrameError {
    /// A short name for counting.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        "bad_frames"
    }
}

impl<'a> LiveMessage<'a> {
    /// Reads the frames of one multipart message.
    ///
    /// # Errors
    ///
    /// When there are not three frames or the second is not 8 bytes long.
    pub fn from_frames<F: AsRef<[u8]>>(frames: &'a [F]) -> Result<Self, FrameError> {
        let [topic, sequence, payload] = frames else {
            return Err(FrameError::Count { count: frames.len() });
        };
        let sequence = sequence.as_ref();
        let bytes = sequence.try_into().map_err(|_| FrameError::SequenceLength { len: sequence.len() })?;
        Ok(Self { topic: topic.as_ref(), sequence: u64::from_be_bytes(bytes), payload: payload.as_ref() })
    }
}

/// One message of a publisher's answer to a request for missed messages: `["", sequence, payload]`, or with
/// the topic as the second frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayReply<'a> {
    /// A message of the publisher's buffer.
    Message {
        /// Its number.
        sequence: u64,
        /// The batch, in MessagePack.
        payload: &'a [u8],
    },
    /// The answer is complete.
    End,
}

impl<'a> ReplayReply<'a> {
    /// Reads the frames of one multipart message, from the last one: the first ones differ between releases.
    ///
    /// # Errors
    ///
    /// When there are not two frames or the one before the last is not 8 bytes long.
    pub fn from_frames<F: AsRef<[u8]>>(frames: &'a [F]) -> Result<Self, FrameError> {
        let [.., sequence, payload] = frames else {
            return Err(FrameError::ReplayCount { count: frames.len() });
        };
        let (sequence, payload) = (sequence.as_ref(), payload.as_ref());
        let bytes = sequence.try_into().map_err(|_| FrameError::SequenceLength { len: sequence.len() })?;
        match u64::from_be_bytes(bytes) {
            u64::MAX if payload.is_empty() => Ok(Self::End),
            sequence => Ok(Self::Message { sequence, payload }),
        }
    }
}
