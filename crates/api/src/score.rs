//! `/score_completions`, `/score_chat_completions`, `/predict` and `/tokenize`.

use std::collections::BTreeMap;

use flash_indexer_types::{InstanceId, Trust, UncheckedInstanceId};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::StoreStatus;

/// A message of an OpenAI chat, for the OpenAPI document. Its content and other fields are those of the chat template.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatMessage {
    /// The author: `system`, `user`, `assistant`, `tool` or another one that the chat template knows.
    pub role: String,
}

/// Body of requests with a prompt: one of tokens, a text and a chat. Each endpoint reads the fields that it needs.
///
/// One struct without `flatten`, which would read fields that no endpoint has, so that those may hold anything.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "a JSON object")]
pub struct PromptFields {
    /// The prompt as tokens.
    pub token_ids: Option<Vec<u32>>,
    /// The prompt as a text, or as tokens.
    #[schema(schema_with = crate::lax_schemas::prompt)]
    pub prompt: Option<Value>,
    /// The messages of an OpenAI chat request, whose other prompt fields may be beside it. Presence only: a chat is parsed
    /// from the whole body.
    #[schema(value_type = Option<Vec<ChatMessage>>)]
    pub messages: Option<Vec<IgnoredAny>>,
    /// The model.
    pub model_name: Option<String>,
    /// Alias of `model_name`.
    pub modelname: Option<String>,
    /// Alias of `model_name`.
    pub model: Option<String>,
    /// The tenant; `default` if absent.
    pub tenant_id: Option<String>,
    /// Alias of `tenant_id`.
    pub routing_group: Option<String>,
    /// The adapter.
    pub lora_name: Option<String>,
    /// The cache salt.
    pub cache_salt: Option<String>,
    /// Number of tokens to keep; none or -1 keeps all. They are the last ones, after the one that begins a sequence, unless
    /// `truncation_side` says which. Also what engines read as an integer, such as `"3"`.
    #[schema(schema_with = crate::lax_schemas::lax_token_count)]
    pub truncate_prompt_tokens: Option<Value>,
    /// The side at which tokens are left out: `left` keeps the last ones, `right` the first ones.
    #[schema(value_type = Option<TruncationSide>)]
    pub truncation_side: Option<Value>,
    /// Whether a text is tokenized with special tokens. Also what engines read as a truth value, such as `"yes"`.
    #[schema(schema_with = crate::lax_schemas::lax_bool)]
    pub add_special_tokens: Option<Value>,
    /// Text after the one that a completion fills in. vLLM makes another prompt with it, which is known to the engine only.
    pub suffix: Option<String>,
    /// The instances to score; absent or empty for all.
    #[serde(alias = "pod_identifiers")]
    pub pods: Option<Vec<UncheckedInstanceId>>,
    /// Number of instances with the highest scores to return; all if it is not above 0, as in a request with the sampling parameter of this
    /// name. Also what engines read as an integer, such as `"20"`.
    #[schema(schema_with = crate::lax_schemas::lax_top_k)]
    pub top_k: Option<Value>,
    /// Whether the scores have an object for each instance.
    pub detail: Option<bool>,
    /// Whether the prompt is recorded for the instance with the highest score, as `POST /predict` records it.
    pub record: Option<bool>,
    /// `/pick`: randomness of the choice; 0 if absent. OpenAI's `temperature` is another one.
    #[schema(minimum = 0.0, maximum = 1e12)]
    pub pick_temperature: Option<f64>,
    /// `/pick`: seed of the choice; random if absent. OpenAI's `seed` is another one.
    pub pick_seed: Option<u64>,
    /// `/pick`: weight of each block that an instance has to compute.
    #[schema(minimum = 0.0, maximum = 1e12)]
    pub prefill_weight: Option<f64>,
    /// `/pick`: weight of each block in use.
    #[schema(minimum = 0.0, maximum = 1e12)]
    pub active_weight: Option<f64>,
    /// `/pick`: weight of each request in flight.
    #[schema(minimum = 0.0, maximum = 1e12)]
    pub request_weight: Option<f64>,
    /// `/pick` and `/predict`: the router's name of the request, which is in flight from then on until `/done`.
    pub request_id: Option<String>,
    /// Not for these endpoints: a prompt is sent whole. Rejected, because a part of a prompt has other scores.
    #[schema(ignore)]
    pub after: Option<IgnoredAny>,
    /// The instance to which the prompt was sent. `/predict` needs it.
    pub pod: Option<UncheckedInstanceId>,
    /// Time for which a prediction counts, in milliseconds.
    pub ttl_ms: Option<u64>,
}

/// The side of a prompt at which truncation leaves tokens out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TruncationSide {
    /// The last tokens are kept.
    Left,
    /// The first tokens are kept.
    Right,
}

impl PromptFields {
    /// Whether the request has a prompt in any form.
    #[must_use]
    pub fn has_prompt(&self) -> bool {
        self.token_ids.is_some() || self.prompt.is_some() || self.messages.is_some()
    }
}

/// The part of a prompt of which nothing is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartialPrompt {
    /// The first block of which nothing is known. Absent where the answer is about no model's blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_block: Option<usize>,
    /// The first token of which nothing is known.
    pub from_token: usize,
    /// Why nothing is known of it.
    pub reason: String,
}

/// Response of `POST /tokenize`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenizedPrompt {
    /// Number of tokens.
    pub count: usize,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The part that follows the tokens, of a chat with media; absent of a whole prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<PartialPrompt>,
}

/// Response of `POST /predict`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Prediction {
    /// `ok`.
    pub status: crate::SuccessStatus,
    /// Blocks that were recorded.
    pub blocks: usize,
    /// The part of a chat with media that was not recorded; absent of a whole prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<PartialPrompt>,
}

/// Scores by instance.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PodScores {
    /// With `detail`.
    Detailed {
        /// The instances.
        pods: BTreeMap<String, PodDetail>,
        /// The part of a chat with media that is not scored; absent of a whole prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partial: Option<PartialPrompt>,
        /// State of the shared store; absent without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store: Option<StoreStatus>,
        /// With `record`: the instance for which the prompt was recorded; absent if none has a score.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recorded: Option<InstanceId>,
    },
    /// Without `detail`.
    Plain(BTreeMap<String, f64>),
}

/// Score of an instance.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PodDetail {
    /// Sum of the weights of the held and predicted blocks.
    pub score: f64,
    /// Prefix length in blocks that the instance's best rank holds in any tier, continued by its shared caches.
    pub held_blocks: u32,
    /// Predicted blocks after the held prefix.
    pub predicted_blocks: u32,
    /// Worst trust state of the ranks.
    pub trust: Trust,
    /// Whether the index evicted blocks of the instance because of its memory limit; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Shared caches that continue the match of a rank, with the blocks of their own match; absent if there is none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Option<BTreeMap<String, u32>>)]
    pub shared_caches: BTreeMap<String, u32>,
}
