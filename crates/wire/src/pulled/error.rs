//! Errors of the pull API's responses and events.

/// A response that is not a list of events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullResponseError {
    /// Not JSON, or not a list.
    #[error("failed to decode the response: {0}; expected a JSON list of events, as TensorRT-LLM's server answers")]
    Malformed(String),
    /// More events than a response of an engine can have.
    #[error("the response has {0} events; at most {max} are allowed", max = super::EVENTS_MAX)]
    TooManyEvents(usize),
}

impl PullResponseError {
    /// Label for counters.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed_batch",
            Self::TooManyEvents(_) => "too_many_events",
        }
    }
}

/// An event that is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullEventError {
    /// The event's JSON has another form.
    #[error("failed to decode the event: {0}")]
    Malformed(String),
    /// A type other than the known ones.
    #[error("unknown event type {kind:?}")]
    UnknownType {
        /// The type, truncated to 64 characters.
        kind: String,
    },
    /// More blocks or tokens than an event can have.
    #[error("the event has {count} {what}; at most {max} are allowed")]
    TooLarge {
        /// Kind of elements that exceed their limit.
        what: &'static str,
        /// Their number.
        count: usize,
        /// Limit of their number.
        max: usize,
    },
    /// A block other than the last one has another number of tokens than the first one.
    #[error("a block of {actual} tokens is followed by others, after blocks of {expected}")]
    TokenCount {
        /// Tokens of the block.
        actual: usize,
        /// Tokens of the first block.
        expected: usize,
    },
    /// Blocks of another size than the registered one. The engine has one size for all its caches.
    #[error(
        "the engine's blocks have {actual} tokens, and those of the index {registered}: register the engine with its block size"
    )]
    BlockSize {
        /// Tokens of the engine's blocks.
        actual: usize,
        /// The registered size.
        registered: usize,
    },
    /// Too many blocks outside device memory, or of too few tokens, to follow their removal.
    #[error("more than {max} blocks are outside device memory or partial: the event is left out", max = super::FOLLOWED_BLOCKS_MAX)]
    TooManyFollowedBlocks,
    /// The rank's numbers begin again twice within one response.
    #[error("event_id steps back within a response")]
    StepBack,
    /// Too many ranks.
    #[error("more than {max} attention ranks in one engine: the event is left out", max = super::RANKS_MAX)]
    TooManyRanks,
}

impl PullEventError {
    /// Label for counters.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) | Self::StepBack => "malformed_event",
            Self::UnknownType { .. } => "unknown_event_type",
            Self::TooLarge { .. } => "event_too_large",
            Self::TokenCount { .. } => "token_count_mismatch",
            Self::BlockSize { .. } => "block_size_mismatch",
            Self::TooManyFollowedBlocks => "followed_blocks",
            Self::TooManyRanks => "too_many_ranks",
        }
    }
}
