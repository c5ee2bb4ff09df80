//! What is tokenized, how, and what comes of it.

use std::sync::Arc;
use std::time::Duration;

use crate::chat::ChatRequest;

/// What is to be tokenized.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// A text as it is.
    Text(String),
    /// A chat, rendered with the template of its model first.
    Chat(Box<ChatRequest>),
}

impl Prompt {
    /// What it takes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Chat(_) => 0,
        }
    }

    /// How many of its tokens a chat request itself wants kept.
    pub(super) fn keep_last(&self) -> Option<usize> {
        match self {
            Self::Text(_) => None,
            Self::Chat(request) => request.truncate_prompt_tokens,
        }
    }
}

/// How a prompt is tokenized where that is not as engines do it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptOptions {
    /// Whether the tokenizer adds what it adds to a sequence.
    pub special_tokens: SpecialTokens,
    /// At most so many tokens are kept, from the end. Tokens that the tokenizer adds are kept and count. `None`: what a
    /// chat request says itself, and all of a text.
    pub keep_last: Option<usize>,
}

/// Whether a tokenizer adds its special tokens, such as the one that begins a sequence.
///
/// Tokens that are written out in a text are recognised in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SpecialTokens {
    /// As engines do: to a text, and not to a chat, whose template has written them.
    #[default]
    AsEngines,
    /// They are added.
    Added,
    /// They are not added.
    Omitted,
}

impl SpecialTokens {
    /// Whether they are added to `prompt`.
    #[must_use]
    pub fn are_added_to(self, prompt: &Prompt) -> bool {
        match self {
            Self::AsEngines => matches!(prompt, Prompt::Text(_)),
            Self::Added => true,
            Self::Omitted => false,
        }
    }
}

/// The tokens of a prompt, and how they came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenized {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Where the tokenizer came from, as [`TokenizerSource::place`](super::TokenizerSource::place) tells it.
    pub place: Arc<str>,
    /// Time in the queue.
    pub waited: Duration,
    /// Time of the work: fetching the tokenizer when it was not there yet, rendering, tokenizing.
    pub worked: Duration,
}
