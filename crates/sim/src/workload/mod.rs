//! Streams of requests.

mod agentic;
mod conversations;
mod documents;
mod mooncake;
mod quantiles;

pub use agentic::{AgenticOptions, AgenticSessions};
pub use conversations::{ConversationOptions, Conversations};
pub use documents::DocumentPrompts;
pub use mooncake::{MooncakeTrace, TraceError};

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

/// A prompt without tokens: only the identity of its parts is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashedPrompt<'a> {
    /// When it arrives, in milliseconds since the workload's start.
    pub at_ms: u64,
    /// One for each part of the prompt, of equal lengths; equal ids after equal ids are equal tokens.
    pub hash_ids: &'a [u64],
    /// The parts that the engine's output completes.
    pub output_ids: &'a [u64],
}

/// A generated prompt: an id for each of its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedPrompt {
    /// When it arrives, in milliseconds since the workload's start.
    pub at_ms: u64,
    /// Number of its session, by the order of their starts.
    pub session: u64,
    /// Ids of its blocks; equal ids after equal ids are equal tokens.
    pub hash_ids: Vec<u64>,
    /// Ids of the blocks that the output completes.
    pub output_ids: Vec<u64>,
    /// Tokens of the output.
    pub output_tokens: usize,
}

impl GeneratedPrompt {
    /// The prompt for a [`Fleet`](crate::Fleet) with one block for each id.
    #[must_use]
    pub fn as_hashed(&self) -> HashedPrompt<'_> {
        HashedPrompt { at_ms: self.at_ms, hash_ids: &self.hash_ids, output_ids: &self.output_ids }
    }
}
