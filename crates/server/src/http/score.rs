//! `/score_completions`, `/score_chat_completions` and `/predict`: scores of instances, and predictions from routers.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use chat_template::ChatRequest;
use flash_indexer_prompt::tokenize::{Prompt, PromptOptions};

use super::Api;
use super::error::ApiError;
use super::extract::{self, parse};
use super::fields::{CheckedScope, store_status};
use super::prompt::{PromptBody, PromptRequest};
use flash_indexer_api::{
    PodDetail, PodScores, PredictRequest, Prediction, PromptField, PromptFields, ScoreRequest, StoreStatus,
    SuccessStatus,
};
use flash_indexer_registry::TokenPrompt;
use flash_indexer_registry::{PodFilter, PodScore, ScoreOptions};
use flash_indexer_types::{GivenInstanceId, ModelKey};

impl PromptRequest for ScoreRequest {
    type Number = u32;
    const LIST: &str = "token_ids";

    fn list(&mut self) -> &mut Vec<u32> {
        self.prompt.token_ids.get_or_insert_default()
    }
}

impl PromptRequest for PredictRequest {
    type Number = u32;
    const LIST: &str = "token_ids";

    fn list(&mut self) -> &mut Vec<u32> {
        self.prompt.token_ids.get_or_insert_default()
    }
}

/// Tokenized prompt with its model, tenant, adapter and salt.
struct TokenizedPrompt {
    key: ModelKey,
    tokens: Vec<u32>,
    lora_name: Option<String>,
    cache_salt: Option<String>,
}

impl TokenizedPrompt {
    fn as_prompt(&self) -> TokenPrompt<'_> {
        let (lora_name, cache_salt) = (self.lora_name.as_deref(), self.cache_salt.as_deref());
        TokenPrompt { tokens: &self.tokens, lora_name, cache_salt }
    }
}

/// Tokenizes a prompt. `body` is the body of the fields; a chat is parsed from it.
async fn tokenize(fields: PromptFields, api: &Api, body: &[u8]) -> Result<TokenizedPrompt, ApiError> {
    let key = fields.scope.key()?;
    let prompts = [fields.token_ids.is_some(), fields.prompt.is_some(), fields.messages.is_some()];
    if prompts.iter().filter(|given| **given).count() > 1 {
        return Err(ApiError::bad_request("token_ids, prompt and messages are alternatives: give one of them"));
    }
    let keep_last = fields.truncate_prompt_tokens.and_then(|kept| usize::try_from(kept).ok()).filter(|&kept| kept > 0);
    let options = PromptOptions { keep_last, ..PromptOptions::default() };
    let tokenize = async |prompt| api.indexer.tokens(&key.model_name, prompt, options).await;
    let tokens = match (fields.token_ids, fields.prompt) {
        (Some(mut tokens), _) | (None, Some(PromptField::Tokens(mut tokens))) => {
            let cut = keep_last.map_or(0, |kept| tokens.len().saturating_sub(kept));
            tokens.drain(..cut);
            tokens
        }
        (None, Some(PromptField::Text(text))) => tokenize(Prompt::Text(text)).await?,
        (None, None) => tokenize(Prompt::Chat(Box::new(parse::<ChatRequest>(body)?))).await?,
    };
    Ok(TokenizedPrompt { key, tokens, lora_name: fields.lora_name, cache_salt: fields.cache_salt })
}

pub(super) async fn completions(
    State(api): State<Arc<Api>>,
    PromptBody { request, json }: PromptBody<ScoreRequest>,
) -> Result<ScoreResponse, ApiError> {
    if request.prompt.token_ids.is_none() && request.prompt.prompt.is_none() {
        return Err(ApiError::unprocessable("the request does not fit: missing field `prompt`, or `token_ids`"));
    }
    score(&api, request, &json).await
}

pub(super) async fn chat_completions(State(api): State<Arc<Api>>, request: Request) -> Result<ScoreResponse, ApiError> {
    let body = extract::bytes(request, &api).await?;
    let request: ScoreRequest = parse(&body)?;
    if request.prompt.messages.is_none() {
        return Err(ApiError::unprocessable("the request does not fit: missing field `messages`"));
    }
    score(&api, request, &body).await
}

async fn score(api: &Api, request: ScoreRequest, body: &[u8]) -> Result<ScoreResponse, ApiError> {
    let pods = request.pods.unwrap_or_default().into_iter().map(GivenInstanceId::checked);
    let pods = pods.collect::<Result<Vec<_>, _>>()?;
    let pods = PodFilter::of(pods.iter().map(|pod| pod.as_key().to_owned()));
    let options = ScoreOptions { pods, top_k: request.top_k };
    let prompt = tokenize(request.prompt, api, body).await?;
    let scores = api.indexer.score(&prompt.key, prompt.as_prompt(), &options).await?;
    let store = store_status(scores.store);
    let pods = scores.pods.into_iter();
    let body = match request.detail {
        Some(true) => {
            PodScores::Detailed { pods: pods.map(|pod| (pod.pod.as_key().to_owned(), detail(&pod))).collect(), store }
        }
        Some(false) | None => PodScores::Plain(pods.map(|pod| (pod.pod.as_key().to_owned(), pod.score)).collect()),
    };
    Ok(ScoreResponse { body, store })
}

/// Scores and the state of the shared store. The state is also a header, because all names of a plain body are instances.
pub(super) struct ScoreResponse {
    body: PodScores,
    store: Option<StoreStatus>,
}

const STORE_HEADER: HeaderName = HeaderName::from_static("flash-indexer-store");

impl IntoResponse for ScoreResponse {
    fn into_response(self) -> Response {
        let mut response = Json(self.body).into_response();
        if let Some(store) = self.store {
            response.headers_mut().insert(STORE_HEADER, HeaderValue::from_static(store.as_str()));
        }
        response
    }
}

fn detail(pod: &PodScore) -> PodDetail {
    let PodScore { score, held_blocks, predicted_blocks, trust, partial, .. } = *pod;
    PodDetail { score, held_blocks, predicted_blocks, trust, partial }
}

pub(super) async fn predict(
    State(api): State<Arc<Api>>,
    PromptBody { request, json }: PromptBody<PredictRequest>,
) -> Result<Json<Prediction>, ApiError> {
    let fields = &request.prompt;
    if fields.token_ids.is_none() && fields.prompt.is_none() && fields.messages.is_none() {
        let missing = "the request does not fit: missing field `token_ids`, `prompt` or `messages`";
        return Err(ApiError::unprocessable(missing));
    }
    let (pod, ttl) = (request.pod.checked()?, request.ttl_ms.map(Duration::from_millis));
    let prompt = tokenize(request.prompt, &api, &json).await?;
    let predicted = api.indexer.predict(&prompt.key, prompt.as_prompt(), &pod, ttl)?;
    Ok(Json(Prediction { status: SuccessStatus::Ok, blocks: predicted.blocks }))
}
