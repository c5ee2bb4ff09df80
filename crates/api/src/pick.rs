//! `/pick` and `/done`.

use flash_indexer_types::{InstanceId, Trust};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::scope::request_with_scope;
use crate::{PartialPrompt, StoreStatus};

/// Response of `POST /pick`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Pick {
    /// The picked instance.
    #[serde(flatten)]
    pub picked: PickCandidate,
    /// With `detail`: all instances that could be picked, and those that are not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<Vec<PickCandidate>>,
    /// Complete blocks of the prompt.
    pub blocks: usize,
    /// Weights of the cost's terms.
    pub weights: PickWeights,
    /// Randomness of the choice.
    pub temperature: f64,
    /// Seed of the choice: as given, or random.
    pub seed: u64,
    /// The part of a chat with media of which nothing is known; absent of a whole prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<PartialPrompt>,
    /// State of the shared store; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreStatus>,
}

/// An instance with its cost, and everything that the cost depends on.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PickCandidate {
    /// The instance.
    pub pod: InstanceId,
    /// `weights.prefill × (max(blocks − score, 0) + load.prefill_blocks) + weights.active × (blocks + load.active_blocks) +
    /// weights.requests × load.requests`.
    pub cost: f64,
    /// Sum of the weights of the held and predicted blocks.
    pub score: f64,
    /// Prefix length in blocks that the instance's best rank holds in any tier, continued by its shared caches.
    pub held_blocks: u32,
    /// Predicted blocks after the held prefix.
    pub predicted_blocks: u32,
    /// Worst trust state of the ranks.
    pub trust: Trust,
    /// Whether all engines of the instance are connected. An instance that is not ready is never picked.
    pub ready: bool,
    /// Requests in flight before the pick.
    pub load: Load,
}

/// Requests in flight of an instance.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct Load {
    /// Number of requests.
    pub requests: u32,
    /// Blocks that are still to be computed.
    pub prefill_blocks: u64,
    /// Blocks in use.
    pub active_blocks: u64,
}

/// Weights of the terms of a cost.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct PickWeights {
    /// Weight of a block that is to be computed.
    pub prefill: f64,
    /// Weight of a block in use.
    pub active: f64,
    /// Weight of a request in flight.
    pub requests: f64,
}

request_with_scope! {
    /// Body of `POST /done`.
    #[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
    #[serde(from = "DoneRequestFields")]
    pub struct DoneRequest, read as DoneRequestFields {
        /// The request, as `/pick` or `/predict` named it.
        pub request_id: String,
        /// What has ended; the whole request if absent.
        #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::by_name::by_name")]
        pub phase: Option<RequestPhase>,
        /// Tokens of the prompt, as the instance reports them in the usage of the finished request. With `cached_tokens`, or neither.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        #[schema(maximum = 4_294_967_295_u64)]
        pub prompt_tokens: Option<u64>,
        /// Of these, tokens that the instance had cached, such as `usage.prompt_tokens_details.cached_tokens` of its answer.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        #[schema(maximum = 4_294_967_295_u64)]
        pub cached_tokens: Option<u64>,
    }
}

/// Part of a request that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RequestPhase {
    /// The instance has computed the prompt.
    Prefill,
    /// The request has finished.
    #[default]
    Finished,
}
