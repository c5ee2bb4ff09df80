//! A message from its frames, looked over once.

use flash_indexer_core::DpRank;
use flash_indexer_wire::{BatchError, BatchOutline, EngineAdapter, FrameError, LiveMessage};

use super::decoders::Frames;

/// A payload that was looked over once.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) payload: Vec<u8>,
    pub(super) outline: Result<BatchOutline, BatchError>,
}

impl Message {
    /// The message whose last frame is its payload.
    pub(super) fn from_frames(mut frames: Frames) -> Self {
        let payload = frames.pop().unwrap_or_default();
        Self { outline: BatchOutline::of(&payload), payload }
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

/// A live message with a batch in it.
#[derive(Debug, Clone)]
pub(super) struct Live {
    pub(super) sequence: u64,
    pub(super) message: Message,
}

/// Frames that are no live message. Their number is not believed: if it was the engine's, the next one shows
/// a gap.
#[derive(Debug, thiserror::Error)]
pub(super) enum LiveMessageError {
    #[error("{0}")]
    Frames(#[from] FrameError),
    #[error("{0}")]
    Batch(#[from] BatchError),
}

impl LiveMessageError {
    /// A short name for counting.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Frames(error) => error.reason(),
            Self::Batch(error) => error.reason(),
        }
    }
}

impl Live {
    pub(super) fn from_frames(frames: Frames) -> Result<Self, LiveMessageError> {
        let sequence = LiveMessage::from_frames(&frames)?.sequence;
        let message = Message::from_frames(frames);
        match &message.outline {
            Ok(_) => Ok(Self { sequence, message }),
            Err(error) => Err(error.clone().into()),
        }
    }

    /// Tokens in the engine's blocks, if the batch says.
    pub(super) fn block_size(&self) -> Option<u32> {
        let outline = self.message.outline.as_ref().ok()?;
        outline.batch(&self.message.payload, EngineAdapter::Detect).block_size()
    }

    /// The rank that the batch is of.
    pub(super) fn dp_rank(&self) -> DpRank {
        let outline = self.message.outline.as_ref().ok();
        outline.and_then(BatchOutline::dp_rank).unwrap_or_default()
    }
}
