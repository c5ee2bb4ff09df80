//! Tokenization of texts and chats: a pool of threads, a cache of tokenizers, and the sources of tokenizers.
//!
//! A [`TokenizerPool`] loads the tokenizer of a model from the first of its [`TokenizerSource`]s that has it: configured
//! paths ([`NamedPaths`]), a directory that is searched ([`ModelDirectory`]), the Hugging Face hub (`Hub`, with the feature
//! `hub`), a tokenizer service ([`TokenizerService`]). Only the last two use the network.

mod counters;
mod error;
#[cfg(feature = "hub")]
mod hub;
mod job;
mod limits;
mod local;
mod models;
mod options;
mod pieces;
mod pool;
mod prompt;
mod queue;
mod service;
mod sliced;
mod source;
mod truncation;

pub use chat_template::Effort;
pub use counters::PoolStatistics;
pub use error::{FailedSource, FailureReason, LoadError, ServiceError, TokenizeError, UnavailableModel};
#[cfg(feature = "hub")]
pub use hub::{DOWNLOADS_MAX, Hub, HubOptions};
pub use limits::{MODEL_NAME_BYTES_MAX, SERVICE_MESSAGE_BYTES_MAX, UNCUT_BYTES_MAX};
pub use local::{ModelDirectory, ModelDirectoryOptions, ModelFiles, NamedPaths, TOKENIZER_BYTES_MAX};
pub use models::MISSING_MODELS_MAX;
pub use options::PoolOptions;
pub use pieces::{Cutting, PieceCache, PieceStatistics};
pub use pool::TokenizerPool;
pub use prompt::{Prompt, PromptOptions, SpecialTokens, Tokenized, Transformers};
pub use queue::{SHORT_BYTES_MAX, Ticket};
pub use service::{AddressError, ServiceAddress, TokenizerService};
pub use sliced::SlicedTokenization;
pub use source::{ModelTokenizer, Tokenization, TokenizerSource};
