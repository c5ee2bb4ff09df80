//! Places where tokenizers come from.

use std::sync::Arc;

use super::error::TokenizeError;
use super::prompt::{Prompt, PromptOptions};

/// Longest name of a model that is looked for, in bytes.
pub const MODEL_NAME_BYTES_MAX: usize = 1024;

/// One place where tokenizers of models come from.
///
/// A pool calls it from several threads, for one model at a time from one of them.
pub trait TokenizerSource: Send + Sync {
    /// The place, as errors and answers name it, for example `directory /models`.
    fn place(&self) -> String;

    /// Fetches what tokenizes prompts of `model`. May take long.
    ///
    /// # Errors
    ///
    /// When the place does not have the model, or has it and it cannot be used.
    fn load(&self, model: &str) -> Result<Arc<dyn ModelTokenizer>, LoadError>;

    /// How often a bound of this place was hit, so that it could not be looked through as a whole.
    fn bounds_reached(&self) -> u64 {
        0
    }
}

/// What tokenizes the prompts of one model.
pub trait ModelTokenizer: Send + Sync {
    /// Token ids of a prompt.
    ///
    /// # Errors
    ///
    /// When the prompt cannot be rendered or tokenized.
    fn tokenize(&self, prompt: &Prompt, options: PromptOptions) -> Result<Vec<u32>, TokenizeError>;

    /// Whether its source would still give the same; `false` has it fetched anew. Asked now and then.
    fn is_current(&self) -> bool {
        true
    }
}

/// Why a place gave no tokenizer. The next place is asked in either case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It does not have this model; says what it has, or what it would take.
    #[error("{0}")]
    Absent(String),
    /// It has it, or would, and it cannot be used.
    #[error("{0}")]
    Failed(String),
}
