//! `/score_completions`, `/score_chat_completions` and `/predict`: scores of instances, and predictions from routers.

use std::num::NonZeroUsize;
use std::time::Duration;

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use flash_indexer_api::{PartialPrompt, PodDetail, PodScores, Prediction, PromptFields, StoreStatus, SuccessStatus};
use flash_indexer_engine_chats::LaxInteger;
use flash_indexer_registry::{InstanceScore, ScoreOptions};
use flash_indexer_traces::{Stage, stage};
use flash_indexer_types::{InstanceId, UncheckedInstanceId};
use serde::Serialize;

use super::content::AcceptedForms;
use super::error::ApiError;
use super::extract::{self, Caller, parse, parse_lenient};
use super::fields::store_status;
use super::prompt::{ParsedRequest, PromptBody};
use super::prompt_body::{PromptOutput, lax, tokenize};

pub(super) async fn completions(caller: Caller, body: PromptBody) -> Result<Response, ApiError> {
    let answer = async move |ParsedRequest { request, json }: ParsedRequest<PromptFields>| {
        if request.token_ids.is_none() && request.prompt.is_none() {
            return Err(ApiError::missing_field("`prompt`, or `token_ids`"));
        }
        score(&caller, request, &json).await
    };
    body.answer(answer).await
}

pub(super) async fn chat_completions(caller: Caller, request: Request) -> Result<Response, ApiError> {
    let body = extract::receive(request, &caller.api, AcceptedForms::Json).await?;
    let answer = async move |_, body: Vec<u8>| {
        let (request, json): (PromptFields, _) = {
            let _parse = stage(Stage::Parse);
            parse_lenient(&body, |json| parse(json))?
        };
        if request.messages.is_none() {
            return Err(ApiError::missing_field("`messages`"));
        }
        let scores = score(&caller, request, json.as_deref().unwrap_or(&body)).await?;
        let _answer = stage(Stage::Answer);
        Ok(scores.into_response())
    };
    body.process(answer).await
}

async fn score(caller: &Caller, mut request: PromptFields, body: &[u8]) -> Result<ScoreResponse, ApiError> {
    let indexer = &caller.api.indexer;
    let pods = request.pods.take().unwrap_or_default().into_iter().map(UncheckedInstanceId::checked);
    let instances = pods.collect::<Result<_, _>>()?;
    let top_k = lax(request.top_k.take(), "top_k")?;
    let top_k = top_k.and_then(|LaxInteger(count)| NonZeroUsize::new(usize::try_from(count).ok()?));
    let options = ScoreOptions { instances, top_k };
    let (detail, record) = (request.detail, request.record == Some(true));
    let prompt = tokenize(request, caller, body, PromptOutput::Tokens).await?;
    let scores = indexer.score(&prompt.key, prompt.as_prompt(), &options).await?;
    // The first by name among equal scores.
    let best = scores.instances.iter().rev().max_by(|a, b| a.score.total_cmp(&b.score)).filter(|_| record);
    let recorded = best.map(|best| best.instance.clone());
    if let Some(recorded) = &recorded {
        indexer.predict(&prompt.key, prompt.as_prompt(), recorded, None).await?;
    }
    let store = store_status(scores.store);
    let partial = prompt.partial(Some(scores.blocks));
    let pods = scores.instances.into_iter();
    let body = match detail {
        Some(true) => PodScores::Detailed {
            pods: pods.map(|pod| (pod.instance.as_key().to_owned(), pod_detail(&pod))).collect(),
            partial: partial.clone(),
            store,
            recorded: recorded.clone(),
        },
        Some(false) | None => PodScores::Plain(pods.map(|pod| (pod.instance.as_key().to_owned(), pod.score)).collect()),
    };
    Ok(ScoreResponse { body, partial, store, recorded })
}

/// Scores, the unknown part of the prompt, the state of the shared store, and the instance for which the prompt was recorded.
/// The latter three are also headers, because all names of a plain body are instances.
pub(super) struct ScoreResponse {
    body: PodScores,
    partial: Option<PartialPrompt>,
    store: Option<StoreStatus>,
    recorded: Option<InstanceId>,
}

const RECORDED_HEADER: HeaderName = HeaderName::from_static("flash-indexer-recorded");
const PARTIAL_HEADER: HeaderName = HeaderName::from_static("flash-indexer-partial");
const STORE_HEADER: HeaderName = HeaderName::from_static("flash-indexer-store");

impl IntoResponse for ScoreResponse {
    fn into_response(self) -> Response {
        let mut response = Json(self.body).into_response();
        let store = self.store.map(|store| HeaderValue::from_static(store.as_str()));
        let recorded = self.recorded.and_then(|pod| json_header(pod.as_key()));
        let partial = self.partial.and_then(|partial| json_header(&partial));
        let headers = [(STORE_HEADER, store), (RECORDED_HEADER, recorded), (PARTIAL_HEADER, partial)];
        response.headers_mut().extend(headers.into_iter().filter_map(|(name, value)| Some((name, value?))));
        response
    }
}

/// JSON as the value of a header. Names of instances may have other characters; JSON of ASCII is a valid value.
fn json_header(value: &(impl Serialize + ?Sized)) -> Option<HeaderValue> {
    HeaderValue::try_from(serde_json::to_string(value).ok()?).ok()
}

fn pod_detail(pod: &InstanceScore) -> PodDetail {
    let InstanceScore { score, held_blocks, predicted_blocks, trust, partial, .. } = *pod;
    let shared_caches = pod.shared.iter().map(|(cache, blocks)| (cache.as_key().to_owned(), *blocks)).collect();
    PodDetail { score, held_blocks, predicted_blocks, trust, partial, shared_caches }
}

pub(super) async fn predict(caller: Caller, body: PromptBody) -> Result<Response, ApiError> {
    body.answer(async move |prompted| record_prediction(&caller, prompted).await).await
}

async fn record_prediction(
    caller: &Caller,
    ParsedRequest { mut request, json }: ParsedRequest<PromptFields>,
) -> Result<Json<Prediction>, ApiError> {
    if !request.has_prompt() {
        return Err(ApiError::missing_field("`token_ids`, `prompt` or `messages`"));
    }
    let pod = request.pod.take().ok_or_else(|| ApiError::missing_field("`pod`"))?.checked()?;
    let (ttl, request_id) = (request.ttl_ms.map(Duration::from_millis), request.request_id.take());
    let prompt = tokenize(request, caller, &json, PromptOutput::Tokens).await?;
    let indexer = &caller.api.indexer;
    if let Some(request_id) = request_id {
        // Called before the prediction: after it, no block would have to be computed.
        indexer.begin_request(&prompt.key, prompt.as_prompt(), &pod, &request_id).await?;
    }
    let predicted = indexer.predict(&prompt.key, prompt.as_prompt(), &pod, ttl).await?;
    let partial = prompt.partial(Some(predicted.blocks));
    Ok(Json(Prediction { status: SuccessStatus::Ok, blocks: predicted.blocks, partial }))
}
