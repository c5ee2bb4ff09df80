//! The interface of tokenizer sources.

use std::sync::Arc;

use chat_template::Effort;

use flash_indexer_engine_chats::ChatEngine;

use super::error::{LoadError, TokenizeError};
use super::pieces::{Cutting, PieceCache};
use super::prompt::{Prompt, PromptOptions};
use super::sliced::SlicedTokenization;

/// A source of tokenizers, such as a directory or a service.
///
/// A pool calls it from several threads, and for one model from one thread at a time.
pub trait TokenizerSource: Send + Sync {
    /// The source's name in errors and answers, for example `directory /models`.
    fn name(&self) -> String;

    /// Loads the tokenizer of `model`. May block for long.
    ///
    /// # Errors
    ///
    /// If the source does not have the model, or fails to load it.
    fn load(&self, model: &str) -> Result<Arc<dyn ModelTokenizer>, LoadError>;

    /// Number of searches that ended early at a limit of this source.
    fn limits_reached(&self) -> u64 {
        0
    }
}

/// The tokenizer of one model.
pub trait ModelTokenizer: Send + Sync {
    /// Tokenizes a prompt, or begins to. `pieces` has the ids of pieces of earlier prompts. With [`Effort::Brief`] a chat that takes
    /// more than a few milliseconds to render is returned.
    ///
    /// # Errors
    ///
    /// If the prompt cannot be rendered or tokenized.
    fn tokenize(
        &self,
        prompt: Prompt,
        options: PromptOptions,
        pieces: &Arc<PieceCache>,
        effort: Effort,
    ) -> Result<Tokenization, TokenizeError>;

    /// The text of tokens of an engine, with special tokens. Tokens that the tokenizer does not have are left out; bytes that are
    /// not text become U+FFFD.
    ///
    /// # Errors
    ///
    /// If the source does not decode tokens.
    fn decode(&self, _tokens: &[u32], _engine: Option<ChatEngine>) -> Result<String, TokenizeError> {
        Err(TokenizeError::Decode(
            "the source of the model's tokenizer makes no text of tokens; give the tokenizer's files with --tokenizer or --tokenizer-dir"
                .to_owned(),
        ))
    }

    /// Where the tokenizer's texts are cut into pieces, and why not at more places. `None` if the source does not cut texts.
    fn cutting(&self) -> Option<(Cutting, Option<&str>)> {
        None
    }

    /// The class of the tokenizer in engines on `transformers` 5, if its pipeline differs from the file's and is not supported here: the
    /// engine's tokens may differ.
    fn unknown_class(&self) -> Option<&str> {
        None
    }

    /// Whether the source still has this version. The pool calls it periodically and reloads the tokenizer on `false`.
    fn is_current(&self) -> bool {
        true
    }
}

/// A prompt that is tokenized, or being tokenized.
pub enum Tokenization {
    /// The ids of the prompt.
    Done(Vec<u32>),
    /// The prompt is tokenized in slices.
    Sliced(Box<dyn SlicedTokenization>),
    /// The prompt, which takes more than [`Effort::Brief`].
    TooLong(Prompt),
}
