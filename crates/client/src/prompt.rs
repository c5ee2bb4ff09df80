//! Prompts, and options of scores, predictions and picks.

use flash_indexer_types::UncheckedInstanceId;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::ClientError;

/// A prompt.
#[derive(Debug, Clone, Copy)]
pub enum Prompt<'a> {
    /// The tokens of a model's prompt.
    Tokens(&'a str, &'a [u32]),
    /// A text for a model, as in `/v1/completions`.
    Text(&'a str, &'a str),
    /// A body of `/v1/completions` or `/v1/chat/completions`, unchanged. It names the model.
    OpenAi(&'a Value),
}

/// Options of scores, predictions and picks; absent ones are the service's defaults. `docs/http-api.md` has those of each endpoint.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PromptOptions {
    /// The tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// The adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora_name: Option<String>,
    /// The cache salt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
    /// The instances to choose from; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<UncheckedInstanceId>,
    /// Number of instances with the highest scores to return.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Number of tokens to keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate_prompt_tokens: Option<i64>,
    /// Predictions: the time for which a prediction counts, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Picks and predictions: the router's name of the request, which is in flight until [`crate::Client::done`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Picks: randomness of the choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pick_temperature: Option<f64>,
    /// Picks: seed of the choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pick_seed: Option<u64>,
    /// Whether an answer has an object for each instance. Scores always have them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub detail: bool,
}

impl Prompt<'_> {
    /// Whether the prompt is a chat, which has a separate endpoint for scores.
    pub(crate) fn is_chat(self) -> bool {
        matches!(self, Self::OpenAi(body) if body.get("messages").is_some())
    }

    /// The body of a request: the prompt's fields with those of the options, which precede them.
    pub(crate) fn body(self, options: &PromptOptions) -> Result<Map<String, Value>, ClientError> {
        let mut body = match self {
            Self::Tokens(model, tokens) => fields([("model", model.into()), ("token_ids", tokens.into())]),
            Self::Text(model, text) => fields([("model", model.into()), ("prompt", text.into())]),
            Self::OpenAi(body) => body.as_object().ok_or(ClientError::NoChat)?.clone(),
        };
        if let Ok(Value::Object(options)) = serde_json::to_value(options) {
            body.extend(options);
        }
        Ok(body)
    }
}

fn fields<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}
