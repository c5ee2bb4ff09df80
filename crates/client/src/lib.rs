//! An asynchronous client of a Flash Indexer, for routers.
//!
//! ```no_run
//! use flash_indexer_client::{Client, ModelScope, TokenQuery};
//!
//! # async fn route() -> Result<(), flash_indexer_client::ClientError> {
//! let client = Client::new("http://127.0.0.1:8090")?;
//! let scope = ModelScope::of("llama-3-8b", None);
//! let matches = client.query(&TokenQuery { token_ids: vec![1; 4096], scope, ..TokenQuery::default() }).await?;
//! for (instance, held) in &matches.instances {
//!     println!("{instance} holds {} tokens of the prompt, {:?}", held.longest_matched, held.trust);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **Deadlines.** Each call ends within [`Client::with_deadline`], 2 s by default. Within it, answers of 429 and 503 and failed
//! connections are tried again, up to three attempts. A request that may have changed something is repeated only if it was refused or
//! never sent.
//!
//! **TLS.** [`Client::with_http_client`] takes a `reqwest` client with the features and certificates that the caller chooses. The default
//! one has no TLS.
//!
//! **Consistency.** A `Client` may be cloned and used by many tasks at once; clones share connections. A [`Conversation`] is for one
//! task at a time.
//!
//! | file | role |
//! |---|---|
//! | `client.rs` | the calls |
//! | `conversation.rs` | turns of a session, which send only new tokens |
//! | `prompt.rs` | prompts and options of scores, predictions and picks |
//! | `send.rs` | attempts of a request within a deadline |
//! | `error.rs` | errors |

mod client;
mod conversation;
mod error;
mod prompt;
mod send;

pub use client::Client;
pub use conversation::Conversation;
pub use error::ClientError;
pub use flash_indexer_api::{
    DoneRequest, Events, ExplainRequest, Explanation, HashQuery, InstanceScores, ModelScope, Pick, PickCandidate,
    PodDetail, PodScores, Prediction, QueryResponse, Readiness, RegisterRequest, RequestPhase, TokenQuery,
    TokenizedPrompt, UnregisterRequest, Unregistration, Worker,
};
pub use flash_indexer_core::LocalHash;
pub use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
pub use flash_indexer_types::{InstanceId, Trust, UncheckedInstanceId};
pub use prompt::{Prompt, PromptOptions};
pub use reqwest;
