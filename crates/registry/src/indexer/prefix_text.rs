//! The text of prefixes, from the last prompts of queries.

use flash_indexer_core::LocalHash;
use flash_indexer_engine_chats::ChatEngine;
use flash_indexer_types::ModelKey;

use super::{Indexer, QueryError};
use crate::search::Search;
use crate::tokenization::TokenizationError;

/// Limit of the tokens of a text that are decoded, for each of its parts.
const TOKENS_MAX: usize = 16 << 10;
/// Limit of each part of a text, in bytes.
const PART_BYTES_MAX: usize = 64 << 10;

/// The text of a prefix in two parts, each of at most 64 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixText {
    /// The end of the text before the blocks that were asked for.
    pub before: String,
    /// Whether that text has a beginning that is left out.
    pub is_before_cut: bool,
    /// The beginning of the blocks' own text.
    pub text: String,
    /// Whether that text has an end that is left out.
    pub is_text_cut: bool,
}

/// A prefix has no text.
#[derive(Debug, thiserror::Error)]
pub enum PrefixTextError {
    /// Prompts are not kept.
    #[error(
        "this service keeps no prompts; to see the text of prefixes, start it with --prompt-text-bytes, such as 64MiB"
    )]
    NotKept,
    /// The model is not registered.
    #[error(transparent)]
    UnknownModel(#[from] QueryError),
    /// No kept prompt begins with the blocks.
    #[error(
        "no kept prompt begins with these blocks: this replica was not asked about it since it started, or newer prompts have replaced it; \
         send the prompt to it again, or raise --prompt-text-bytes"
    )]
    UnknownPrompt,
    /// The service has no tokenizers.
    #[error(
        "this service has no tokenizers; to see the text of prefixes, start it with --tokenizer-dir or --tokenizer as well"
    )]
    NoTokenizers,
    /// The model's tokenizer cannot be loaded, or makes no text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizationError),
}

impl Indexer {
    /// The text of blocks `from` to the last of `blocks`, the local hashes of a prefix, and the text before it. `engine` is the engine
    /// whose tokens they are. Blocks the calling thread for some milliseconds, or longer to load the tokenizer.
    ///
    /// It is the text of a kept prompt that has these local hashes. Prompts are kept with `IndexerOptions::prompt_text_bytes`: those of
    /// queries, scores, picks and predictions that this replica has answered, over every interface. Continuations of a cursor are not kept.
    ///
    /// # Errors
    ///
    /// If prompts are not kept, if the model is not registered, if no kept prompt has these blocks, or if the model has no tokenizer that
    /// makes text of tokens.
    pub fn prefix_text(
        &self,
        key: &ModelKey,
        blocks: &[LocalHash],
        from: usize,
        engine: ChatEngine,
    ) -> Result<PrefixText, PrefixTextError> {
        let kept = self.recent_prompts.as_ref().ok_or(PrefixTextError::NotKept)?;
        self.model(key)?;
        let prompt = kept.find(key, blocks).ok_or(PrefixTextError::UnknownPrompt)?;
        let (before, own) = (prompt.tokens(0..from.min(blocks.len())), prompt.tokens(from..blocks.len()));
        let decoded_before = &before[before.len().saturating_sub(TOKENS_MAX)..];
        let decoded_own = &own[..own.len().min(TOKENS_MAX)];
        let tokens = [decoded_before, decoded_own].concat();
        let decoded = self.tokenization.decode(&key.model_name, engine, (&tokens, decoded_before.len()));
        let (before_text, mut text) = decoded.map_err(|error| match error {
            TokenizationError::NotConfigured => PrefixTextError::NoTokenizers,
            error => error.into(),
        })?;
        let begin = before_text.ceil_char_boundary(before_text.len().saturating_sub(PART_BYTES_MAX));
        let end = text.floor_char_boundary(PART_BYTES_MAX);
        let is_text_cut = end < text.len() || decoded_own.len() < own.len();
        text.truncate(end);
        Ok(PrefixText {
            before: before_text[begin..].to_owned(),
            is_before_cut: begin > 0 || decoded_before.len() < before.len(),
            text,
            is_text_cut,
        })
    }

    /// Keeps the prompt of a search, if prompts are kept.
    pub(super) fn keep_prompt(&self, key: &ModelKey, search: &Search<'_>) {
        if let Some(kept) = &self.recent_prompts {
            search.keep_prompt(key, kept);
        }
    }
}
