//! The registry of a replica: its models, instances and ranks, their indexes, and the answers that routers and
//! operators get.
//!
//! [`Indexer`] is the whole registry. The crate has no HTTP and no gRPC; the server maps both to the methods of
//! [`Indexer`].
//!
//! ```
//! use std::borrow::Cow;
//!
//! use flash_indexer_registry::{Indexer, IndexerOptions, Query, QueryOptions};
//! use flash_indexer_core::hashing::BlockSize;
//! use flash_indexer_types::{InstanceId, ModelKey, Registration};
//!
//! let indexer = Indexer::start(IndexerOptions::default())?;
//! let model = ModelKey::new("llama", None);
//! let block_size = BlockSize::new(16).expect("not zero");
//! // The subscription connects in the background.
//! let endpoint = "tcp://127.0.0.1:5557";
//! indexer.register(Registration::new(InstanceId::number(1), model.clone(), endpoint, block_size))?;
//!
//! let answer = indexer.query_local(&model, Query::Hashes(Cow::Borrowed(&[])), QueryOptions::default())?;
//! assert_eq!(answer.ranks.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | role |
//! |---|---|
//! | `indexer` | [`Indexer`]: its parts and threads |
//! | `indexer/options`, `reports` | options; reports of instances, readiness and metrics |
//! | `indexer/register`, `registration_error`, `unregister`, `cleanup` | registering and unregistering ranks, and the background work of both |
//! | `indexer/model_registry`, `memory_shares` | creating and removing models, and dividing the memory limit among them |
//! | `indexer/registration_check`, `tenants` | checks of registrations against the options; ranks and blocks of tenants against their limits |
//! | `indexer/picking`, `routing` | picks and requests in flight; instances without events |
//! | `indexer/readings`, `addresses` | reads of ranks at a known position; addresses at which instances serve clients |
//! | `indexer/owners` | owners of registered ranks |
//! | `indexer/pod_options`, `pod_registration` | pods that register themselves over the bound socket |
//! | `indexer/handover`, `restore`, `restored_state`, `shadow`, `rank_records` | dumps, restores, rebuilding an instance, and digests |
//! | `indexer/queries`, `scoring`, `explanations`, `prefix_text` | entry points of queries, scores, predictions, explanations, and of the text of prefixes |
//! | `model` | one model of one tenant: its index, its instances, and the sink that ingestion writes into |
//! | `model/answers`, `variant_matches`, `shared_caches` | answers of the index, and the blocks that shared caches add to them |
//! | `model/instance`, `instance_table`, `replaceable_index` | instances, the list of ranks that queries read, replacing a failed index |
//! | `published_ranks` | the ranks of a model as published to the shared store |
//! | `shared_store` | connection to the shared store; `local_ranks` are published, `fleet` is the list of all replicas' ranks |
//! | `search` | the search for one prompt, in the local index and in the shared store |
//! | `answer` | answers to queries |
//! | `score`, `tier_lookups` | scores of instances, and the tiers of the blocks that they count |
//! | `prediction_waits` | waits until the blocks of a routed prompt are in the index |
//! | `tokenization` | texts and chats to tokens |
//! | `state_metrics` | state of the shared store and of the tokenizer pool as metrics |
//! | `faults` | faults injected by tests |

mod answer;
#[cfg(any(test, feature = "fault-injection"))]
pub mod faults;
mod indexer;
mod model;
mod prediction_waits;
mod published_ranks;
mod score;
mod search;
mod shared_store;
mod state_metrics;
mod tier_lookups;
mod tokenization;

pub use answer::{Answer, AnswerCursor, InstanceName, NamedRank, QueryOptions, RankAnswer, StoreAnswer};
pub use flash_indexer_routing::{
    Candidate, CostWeights, InstanceFilter, PickOptions, RecordedPrediction, TierWeights, TierWeightsError, WEIGHT_MAX,
};
pub use indexer::{
    DigestError, ExplainQuestion, Explanation, Indexer, IndexerOptions, InstanceReport, ListenError, PickResult,
    PodOptions, PodsGuard, PredictError, PrefixText, PrefixTextError, Prompt, QueryError, RegistrationError,
    ReportedHits, ReportedHitsError, RequestPhase, Restore, RestoredRank, Shadow, ShadowError, UnregisterOutcome,
};
pub use score::{InstanceScore, ScoreOptions, Scores};
pub use search::{Query, TokenPrompt};
pub use state_metrics::{described_labels, described_sections};
pub use tokenization::{TokenizationError, TokenizationOptions, TokenizerServiceOptions};
