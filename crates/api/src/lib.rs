//! Requests and responses of the HTTP API, declared once for the service, its peers and the command line.
//!
//! The types depend on JSON and its schema, but not on HTTP. [`document`] makes the OpenAPI document of all endpoints from them.
//!
//! | file | role |
//! |---|---|
//! | `query.rs`, `tiered_query.rs`, `score.rs`, `explain.rs` | queries, scores and predictions, explanations |
//! | `workers.rs` | registrations, and registered engines with their listeners |
//! | `fleet.rs` | the shared store, discovery, peers, parameters of dumps and digests |
//! | `status.rs` | health, readiness, success and errors |
//! | `scope.rs` | model and tenant of a request |
//! | `by_name.rs` | enums in requests |
//! | `json_error.rs` | the reason why JSON does not fit a request |
//! | `ignored.rs` | fields of a body that the request's type does not have |
//! | `prefix_text.rs` | the text of a prefix |
//! | `pick.rs` | picks and the ends of requests |
//! | `openapi/` | the endpoints, and the document |
//! | `token_list.rs`, `little_endian.rs` | fast parsing of lists of numbers: of tokens as JSON, of tokens and hashes as bytes |
//! | `prompt_request.rs` | parsing of requests with a prompt, as JSON or as bytes |
//! | `lax_schemas.rs` | schemas of fields that are read as engines read them |

mod by_name;
mod explain;
mod fleet;
mod ignored;
mod json_error;
mod lax_schemas;
mod little_endian;
mod openapi;
mod pick;
mod prefix_text;
mod prompt_request;
mod query;
mod scope;
mod score;
mod status;
mod tiered_query;
mod token_list;
mod workers;

use std::collections::BTreeMap;

pub use explain::{
    AbsenceReason, AbsentRank, EndFacts, EndReason, ExplainParameters, ExplainRequest, ExplainedRank, Explanation,
    FleetHoldsElsewhere, Hashes, HeldElsewhere, IncompleteGroup, MatchEnd, MissingBlock, RemovalReason, StorageTier,
};
pub use fleet::{
    DigestParameters, DiscoverySource, DiscoveryTarget, DumpParameters, PeerRequest, PublishedRank, StoreState,
    StoreStatus,
};
pub use ignored::parse_with_ignored;
pub use json_error::{body_error, field_error, json_error};
pub use little_endian::LittleEndian;
pub use openapi::document;
pub use pick::{DoneRequest, Load, Pick, PickCandidate, PickWeights, RequestPhase};
pub use prefix_text::{PrefixText, PrefixTextQuery};
pub use prompt_request::{PromptNumber, PromptRequest, does_not_fit, read_binary};
pub use query::{HashQuery, InstanceScores, QueryResponse, TokenQuery};
pub use scope::ModelScope;
pub use score::{
    ChatMessage, PartialPrompt, PodDetail, PodScores, Prediction, PromptFields, TokenizedPrompt, TruncationSide,
};
pub use status::{ErrorBody, Readiness, ReadyStatus, Success, SuccessStatus};
pub use tiered_query::{DeviceMatches, TierExtensions, TieredMatches, TieredQueryResponse, WorkerRankId};
pub use token_list::read_token_list;
pub use workers::{
    BlocksByTier, Events, Listener, RegisterRequest, Registered, ReplayStatus, UnregisterRequest, Unregistration,
    Worker, WorkerKind,
};

/// Values by data-parallel rank. A rank is a text as the key of a JSON object.
pub type ByRank<T> = BTreeMap<u32, T>;
