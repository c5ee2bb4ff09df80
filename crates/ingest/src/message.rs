//! Messages: frames of a socket, with the outline of their batch.

use flash_indexer_core::DpRank;
use flash_indexer_wire::{BatchError, BatchOutline, EngineAdapter, FrameError, LiveMessage};

/// Frames of one message, as a socket receives them.
pub type Frames = Vec<Vec<u8>>;

/// A payload with the outline of its batch, which is parsed once.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) payload: Vec<u8>,
    pub(super) outline: Result<BatchOutline, BatchError>,
}

impl Message {
    /// Parses the outline of the last frame, which is the payload.
    pub(super) fn from_frames(mut frames: Frames) -> Self {
        let payload = frames.pop().unwrap_or_default();
        Self { outline: BatchOutline::of(&payload), payload }
    }

    /// The message without its events. Its sequence number still counts.
    pub(super) fn without_events(self) -> Self {
        Self { outline: self.outline.map(BatchOutline::without_events), ..self }
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

/// A live message with a valid batch.
#[derive(Debug, Clone)]
pub(super) struct Live {
    /// None from an engine that does not number its messages.
    pub(super) sequence: Option<u64>,
    pub(super) message: Message,
}

/// Frames that are not a valid live message.
#[derive(Debug, thiserror::Error)]
pub(super) enum LiveMessageError {
    #[error("{0}")]
    Frames(#[from] FrameError),
    #[error("{error}")]
    Batch {
        /// Sequence number of the message, if its frames have one.
        sequence: Option<u64>,
        error: BatchError,
    },
}

impl LiveMessageError {
    /// The metric's reason label.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Frames(error) => error.reason(),
            Self::Batch { error, .. } => error.reason(),
        }
    }

    /// Sequence number of the message, if it can be read.
    pub(super) const fn sequence(&self) -> Option<u64> {
        match self {
            Self::Frames(_) => None,
            Self::Batch { sequence, .. } => *sequence,
        }
    }
}

impl Live {
    /// Parses a live message.
    ///
    /// # Errors
    ///
    /// When the frames or the batch are malformed.
    pub(super) fn from_frames(frames: Frames) -> Result<Self, LiveMessageError> {
        let sequence = LiveMessage::from_frames(&frames)?.sequence;
        let message = Message::from_frames(frames);
        match &message.outline {
            Ok(_) => Ok(Self { sequence, message }),
            Err(error) => Err(LiveMessageError::Batch { sequence, error: error.clone() }),
        }
    }

    /// Tokens in a block, if the batch stores one.
    pub(super) fn block_size(&self) -> Option<u32> {
        let outline = self.message.outline.as_ref().ok()?;
        outline.batch(&self.message.payload, EngineAdapter::Detect).block_size()
    }

    /// The batch's rank.
    pub(super) fn dp_rank(&self) -> DpRank {
        let outline = self.message.outline.as_ref().ok();
        outline.and_then(BatchOutline::dp_rank).unwrap_or_default()
    }
}
