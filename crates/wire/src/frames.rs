//! Frames of live and replayed messages.

/// A live message: `[topic, sequence, payload]`, or without a sequence number `[topic, payload]` or `[payload]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveMessage<'a> {
    /// The publisher's topic; opaque.
    pub topic: &'a [u8],
    /// Sequence number of the message in its epoch, from zero; none from an engine that does not number its messages.
    pub sequence: Option<u64>,
    /// The batch, in MessagePack.
    pub payload: &'a [u8],
}

/// The frames do not form a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The number of frames is not one to three.
    #[error("expected 3 frames (topic, sequence, payload), or fewer without a sequence number, got {count}")]
    Count {
        /// Number of frames received.
        count: usize,
    },
    /// A replayed message has fewer than two frames.
    #[error("expected at least 2 frames (…, sequence, payload) in a reply to a replay request, got {count}")]
    ReplayCount {
        /// Number of frames received.
        count: usize,
    },
    /// The sequence number is not a 64-bit integer.
    #[error("expected a sequence number of 8 bytes, got {len}")]
    SequenceLength {
        /// Length of the frame, in bytes.
        len: usize,
    },
}

impl FrameError {
    /// Label for counters.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        "bad_frames"
    }
}

impl<'a> LiveMessage<'a> {
    /// Decodes the frames of one multipart message.
    ///
    /// # Errors
    ///
    /// When there are not one to three frames, or the second of three is not 8 bytes long.
    pub fn from_frames<F: AsRef<[u8]>>(frames: &'a [F]) -> Result<Self, FrameError> {
        match frames {
            [topic, sequence, payload] => {
                let sequence = sequence.as_ref();
                let bytes = sequence.try_into().map_err(|_| FrameError::SequenceLength { len: sequence.len() })?;
                let sequence = Some(u64::from_be_bytes(bytes));
                Ok(Self { topic: topic.as_ref(), sequence, payload: payload.as_ref() })
            }
            [topic, payload] => Ok(Self { topic: topic.as_ref(), sequence: None, payload: payload.as_ref() }),
            [payload] => Ok(Self { topic: &[], sequence: None, payload: payload.as_ref() }),
            _ => Err(FrameError::Count { count: frames.len() }),
        }
    }
}

/// One message of a publisher's reply to a replay request: `["", sequence, payload]`, or with the topic as the second
/// frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayReply<'a> {
    /// A message of the publisher's replay buffer.
    Message {
        /// The publisher's topic; empty in a reply without it.
        topic: &'a [u8],
        /// Its sequence number.
        sequence: u64,
        /// The batch, in MessagePack.
        payload: &'a [u8],
    },
    /// The end of the reply.
    End,
}

impl<'a> ReplayReply<'a> {
    /// Decodes the frames of one multipart message from the last one backwards: the first frames differ between
    /// releases.
    ///
    /// # Errors
    ///
    /// When there are fewer than two frames, or the last but one is not 8 bytes long.
    pub fn from_frames<F: AsRef<[u8]>>(frames: &'a [F]) -> Result<Self, FrameError> {
        let [.., sequence, payload] = frames else {
            return Err(FrameError::ReplayCount { count: frames.len() });
        };
        let (sequence, payload) = (sequence.as_ref(), payload.as_ref());
        let bytes = sequence.try_into().map_err(|_| FrameError::SequenceLength { len: sequence.len() })?;
        match u64::from_be_bytes(bytes) {
            u64::MAX if payload.is_empty() => Ok(Self::End),
            sequence => {
                let topic = match frames {
                    [_, .., topic, _, _] => topic.as_ref(),
                    _ => &[],
                };
                Ok(Self::Message { topic, sequence, payload })
            }
        }
    }
}
