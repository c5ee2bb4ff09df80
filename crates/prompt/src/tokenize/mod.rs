//! Prompts and chats to token ids: a pool of threads, tokenizers loaded when they are needed, and the
//! places where they come from.
//!
//! A [`TokenizerPool`] asks its [`TokenizerSource`]s in order for the tokenizer of a model: paths that were
//! named ([`NamedPaths`]), a directory that is searched ([`ModelDirectory`]), the Hugging Face hub (`Hub`, with
//! the feature `hub`), a tokenizer service ([`TokenizerService`]). What it got is kept until others are used
//! more.
//!
//! Nothing here needs the network except the last two.

mod counters;
mod error;
#[cfg(feature = "hub")]
mod hub;
mod job;
mod last_ids;
mod local;
mod models;
mod pool;
mod prompt;
mod queue;
mod service;
mod source;

pub use counters::PoolStatistics;
pub use error::{FailureReason, Place, TokenizeError, Unavailable};
#[cfg(feature = "hub")]
pub use hub::{DOWNLOADS_MAX, Hub, HubOptions};
pub use local::{ModelDirectory, ModelDirectoryOptions, ModelFiles, NamedPaths, TOKENIZER_BYTES_MAX};
pub use models::MISSING_MODELS_MAX;
pub use pool::{PoolOptions, TokenizerPool};
pub use prompt::{Prompt, PromptOptions, SpecialTokens, Tokenized};
pub use queue::Ticket;
pub use service::{AddressError, SERVICE_MESSAGE_BYTES_MAX, ServiceAddress, ServiceError, TokenizerService};
pub use source::{LoadError, MODEL_NAME_BYTES_MAX, ModelTokenizer, TokenizerSource};
