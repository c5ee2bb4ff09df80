//! The registry of a replica: which models, instances and ranks are registered, what their indexes hold, and the answers that
//! routers and operators get. HTTP and gRPC are thin over [`Indexer`].
//!
//! | module | role |
//! |---|---|
//! | `indexer` | [`Indexer`]: registering, unregistering, restoring, dumping, queries, scores, explanations |
//! | `model` | one model of one tenant: its index, and the sink that ingestion writes into |
//! | `search` | one prompt looked up here and in the shared store |
//! | `answer`, `score`, `predictions`, `tier_lookups` | answers and scores made of what a search found |
//! | `shared_store` | what this replica publishes to the shared store, and what other replicas have published |
//! | `recent_uses` | recent uses of blocks |
//! | `stream_positions` | positions of unregistered streams, from which a new registration continues |
//! | `tokenization` | prompts to tokens |
//! | `telemetry` | parts of the state as metrics |

mod answer;
#[cfg(any(test, feature = "fault-injection"))]
pub mod faults;
mod indexer;
mod model;
mod predictions;
mod recent_uses;
mod score;
mod search;
mod shared_store;
mod stream_positions;
mod telemetry;
mod tier_lookups;
mod tokenization;

pub use answer::{Answer, QueryOptions, RankAnswer, StoreAnswer};
pub use indexer::{
    DigestError, ExplainQuestion, Explanation, Indexer, IndexerOptions, InstanceReport, ListenError, PodOptions,
    PodsGuard, PredictError, Prompt, QueryError, RegistrationError, Restore, RestoredRank, Shadow, ShadowError,
    Unregistered,
};
pub use score::{
    PodFilter, PodScore, Predicted, PredictedBlocks, PredictionLimits, ScoreOptions, Scores, TierWeights,
    TierWeightsError,
};
pub use search::{Query, TokenPrompt};
pub use tokenization::{TokenizationError, TokenizationOptions, TokenizerServiceOptions};
