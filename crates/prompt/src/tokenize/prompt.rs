//! The input and the output of tokenization.

use std::sync::Arc;
use std::time::Duration;

use chat_template::ChatError;

use flash_indexer_engine_chats::{Chat, ChatEngine, TruncationSide};

use super::truncation::Truncation;

/// The input of tokenization.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// A text, tokenized unchanged.
    Text(String),
    /// A chat, rendered as its engine does before it is tokenized.
    Chat(Box<Chat>),
}

impl Prompt {
    /// Name of its kind in metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Chat(_) => "chat",
        }
    }

    /// Approximate size in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Chat(chat) => chat.bytes(),
        }
    }
}

/// Deviations from how engines tokenize a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptOptions {
    /// The engine whose tokens of a text are wanted. A chat names its own.
    pub engine: Option<ChatEngine>,
    /// Whether the tokenizer adds its special tokens.
    pub special_tokens: SpecialTokens,
    /// Maximum number of tokens to keep, from the end. Tokens that the tokenizer adds are kept, and count. `None` keeps the
    /// number in a chat request, and all tokens of a text.
    pub keep_last: Option<usize>,
    /// The side at which tokens are left out, including tokens that the tokenizer adds. `None` takes the one in a chat request.
    pub truncation_side: Option<TruncationSide>,
    /// The version of `transformers` that loads the tokenizers of vLLM and SGLang.
    pub transformers: Transformers,
}

/// Major version of `transformers` that vLLM and SGLang engines load tokenizers with. TensorRT-LLM has version 4.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transformers {
    /// It takes `tokenizer.json` as it is.
    Four,
    /// Some classes take only the vocabulary of `tokenizer.json`, and have their own pipeline.
    #[default]
    Five,
}

impl PromptOptions {
    /// The tokens of this prompt to keep. `None` keeps all. A chat request may set it as well; its -1 means the model's
    /// maximum, which a valid prompt does not exceed.
    pub(super) fn kept_of(self, prompt: &Prompt) -> Result<Option<Truncation>, ChatError> {
        let (asked, side) = match prompt {
            Prompt::Chat(chat) => (chat.request.truncate_prompt_tokens, chat.fields.truncation_side),
            Prompt::Text(_) => (None, None),
        };
        let wrong = |asked| ChatError::Request(format!("truncate_prompt_tokens is {asked}; send a number >= 0, or -1"));
        let asked = asked.filter(|asked| *asked != -1);
        let asked = asked.map(|asked| usize::try_from(asked).map_err(|_| wrong(asked))).transpose()?;
        Ok(self.keep_last.or(asked).map(|count| Truncation { count, side: self.truncation_side.or(side) }))
    }
}

/// Whether a tokenizer adds its special tokens, such as the one that begins a sequence.
///
/// Special tokens that are spelled out in a text are recognised in any case, except by vLLM's tokenizers of Mistral's models.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SpecialTokens {
    /// As engines do: added to a text, and not to a chat, whose template contains them.
    #[default]
    AsEngines,
    /// Added to texts and chats.
    Added,
    /// Never added.
    Omitted,
}

impl SpecialTokens {
    /// Whether special tokens are added to `prompt`.
    #[must_use]
    pub fn are_added_to(self, prompt: &Prompt) -> bool {
        match self {
            Self::AsEngines => matches!(prompt, Prompt::Text(_)),
            Self::Added => true,
            Self::Omitted => false,
        }
    }
}

/// The tokens of a prompt, their source and timings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenized {
    /// Token ids.
    pub ids: Vec<u32>,
    /// The type of the first content part of a chat whose tokens only the engine has. `ids` then has only the ids that certainly
    /// precede this part; it is empty if truncation depends on the part's tokens.
    pub media: Option<&'static str>,
    /// Name of the tokenizer's source, see [`TokenizerSource::name`](super::TokenizerSource::name).
    pub source: Arc<str>,
    /// Time in the queue.
    pub waited: Duration,
    /// Time of the work: loading the tokenizer if it was not cached, rendering, tokenizing.
    pub worked: Duration,
}
