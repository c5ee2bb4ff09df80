//! Streams of requests.

mod conversations;
mod mooncake;

pub use conversations::{ConversationOptions, Conversations};
pub use mooncake::{HashedPrompt, MooncakeTrace, TraceError};

/// One request as an engine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// When it arrives, in milliseconds since the workload's start.
    pub at_ms: u64,
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Tokens that the engine generates.
    pub output: Vec<u32>,
}
