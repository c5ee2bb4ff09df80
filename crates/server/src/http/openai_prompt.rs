//! The prompt of an OpenAI request that a client sends to an engine.

use std::borrow::Cow;
use std::collections::BTreeMap;

use flash_indexer_api::{PromptFields, json_error};
use flash_indexer_traces::{Stage, stage};
use flash_indexer_types::ModelKey;
use serde_json::value::RawValue;

use super::error::ApiError;
use super::extract::{Caller, parse, parse_lenient, unfit};
use super::prompt_body::{PromptOutput, TokenizedPrompt, tokenize};

/// Endpoint of an engine whose requests have a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenAiEndpoint {
    ChatCompletions,
    Completions,
}

impl OpenAiEndpoint {
    /// The endpoint of a path, which may have a query.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path.split('?').next() {
            Some("/v1/chat/completions") => Some(Self::ChatCompletions),
            Some("/v1/completions") => Some(Self::Completions),
            _ => None,
        }
    }
}

/// Tokenizes the prompt of a request's body. Only fields that engines read are used: clients of engines choose no tenant.
///
/// A model that is not registered is an adapter of the base model: engines serve both by their names.
pub(crate) async fn tokenize_openai(
    (endpoint, body): (OpenAiEndpoint, &[u8]),
    tenant_id: &str,
    base_model: Option<&ModelKey>,
    caller: &Caller,
) -> Result<TokenizedPrompt, ApiError> {
    let parse = stage(Stage::Parse);
    let (given, json) = parse_lenient(body, |json| engine_fields(json, endpoint))?;
    drop(parse);
    let body = json.as_deref().unwrap_or(body);
    let (prompt, messages) = match endpoint {
        OpenAiEndpoint::ChatCompletions => {
            (None, Some(given.messages.ok_or_else(|| ApiError::missing_field("`messages`"))?))
        }
        OpenAiEndpoint::Completions => (Some(given.prompt.ok_or_else(|| ApiError::missing_field("`prompt`"))?), None),
    };
    let model = given.model.ok_or_else(|| ApiError::missing_field("`model`"))?;
    let key = ModelKey::new(model, Some(tenant_id.to_owned()));
    let is_registered = caller.api.indexer.block_size_of(&key).is_some();
    let (model_name, lora_name) = match base_model.filter(|_| !is_registered) {
        Some(base) => (base.model_name.clone(), Some(key.model_name)),
        None => (key.model_name, None),
    };
    let fields = PromptFields {
        token_ids: None,
        prompt,
        messages,
        model_name: Some(model_name),
        modelname: None,
        model: None,
        tenant_id: Some(tenant_id.to_owned()),
        routing_group: None,
        lora_name,
        after: None,
        ..given
    };
    tokenize(fields, caller, body, PromptOutput::Tokens).await
}

/// Fields of OpenAI requests that this service reads as engines do. Names with another meaning here, such as `top_k`, are left out.
const ENGINE_FIELDS: [&str; 7] =
    ["model", "prompt", "messages", "cache_salt", "truncate_prompt_tokens", "truncation_side", "add_special_tokens"];

/// A field of completions only. In a chat, engines ignore it.
const SUFFIX: &str = "suffix";

fn engine_fields(body: &[u8], endpoint: OpenAiEndpoint) -> Result<PromptFields, ApiError> {
    let mut fields: BTreeMap<Cow<'_, str>, &RawValue> = parse(body)?;
    let has_suffix = endpoint == OpenAiEndpoint::Completions;
    fields.retain(|name, _| ENGINE_FIELDS.contains(&name.as_ref()) || has_suffix && name == SUFFIX);
    let kept = serde_json::to_vec(&fields).map_err(|error| unfit(&error, &json_error(&error)))?;
    parse(&kept)
}
