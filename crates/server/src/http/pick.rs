//! `/pick` and `/done`: the choice of an instance for a request, and the end of the request.

use axum::Json;
use axum::response::Response;
use flash_indexer_api::{
    DoneRequest, Load, Pick, PickCandidate, PickWeights, PromptFields, RequestPhase as ApiPhase, Success,
};
use flash_indexer_registry::{Candidate, ReportedHits, RequestPhase};
use flash_indexer_types::UncheckedInstanceId;

use super::error::ApiError;
use super::extract::{Body, Caller};
use super::fields::{CheckedScope, store_status};
use super::prompt::{ParsedRequest, PromptBody};
use super::prompt_body::{PromptOutput, tokenize};
use crate::pick_options::{PickOptionsError, UncheckedPickOptions};

/// Error of the end of a request that is not in flight.
pub(crate) const NOT_IN_FLIGHT: &str = "the request is not in flight: it has finished, was never reported with this request_id, or was dropped after 10 minutes";

/// Error of a pick if none of the instances is ready.
pub(crate) fn none_ready(instances: usize) -> String {
    format!("none of {instances} instances is ready; see the status of each in GET /workers, or name others in `pods`")
}

impl From<PickOptionsError> for ApiError {
    fn from(error: PickOptionsError) -> Self {
        match error {
            PickOptionsError::Number { .. } => Self::unprocessable(error.to_string()),
            PickOptionsError::Seed(_) => Self::unavailable(error.to_string()),
        }
    }
}

pub(super) async fn pick(caller: Caller, body: PromptBody) -> Result<Response, ApiError> {
    body.answer(async move |prompted| pick_instance(&caller, prompted).await).await
}

async fn pick_instance(
    caller: &Caller,
    ParsedRequest { mut request, json }: ParsedRequest<PromptFields>,
) -> Result<Json<Pick>, ApiError> {
    if !request.has_prompt() {
        return Err(ApiError::missing_field("`token_ids`, `prompt` or `messages`"));
    }
    let pods = request.pods.take().unwrap_or_default().into_iter().map(UncheckedInstanceId::checked);
    let pods = pods.collect::<Result<_, _>>()?;
    let options = UncheckedPickOptions {
        prefill_weight: request.prefill_weight,
        active_weight: request.active_weight,
        request_weight: request.request_weight,
        pick_temperature: request.pick_temperature,
        pick_seed: request.pick_seed,
    };
    let options = options.checked()?;
    let (request_id, detail) = (request.request_id.take().filter(|id| !id.is_empty()), request.detail == Some(true));
    let prompt = tokenize(request, caller, &json, PromptOutput::Tokens).await?;
    let picked = caller.api.indexer.pick(&prompt.key, prompt.as_prompt(), pods, options, request_id.as_deref()).await?;
    let weights = options.weights;
    let shown = |candidate: &Candidate| PickCandidate {
        pod: candidate.instance.clone(),
        cost: candidate.cost(picked.blocks, weights),
        score: candidate.score,
        held_blocks: candidate.held_blocks,
        predicted_blocks: candidate.predicted_blocks,
        trust: candidate.trust,
        ready: candidate.is_ready,
        load: Load {
            requests: candidate.load.requests,
            prefill_blocks: candidate.load.prefill_blocks,
            active_blocks: candidate.load.active_blocks,
        },
    };
    let Some(chosen) = picked.picked.map(|at| &picked.candidates[at]) else {
        return Err(ApiError::unavailable(none_ready(picked.candidates.len())));
    };
    let weights = PickWeights { prefill: weights.prefill, active: weights.active, requests: weights.requests };
    Ok(Json(Pick {
        picked: shown(chosen),
        candidates: detail.then(|| picked.candidates.iter().map(shown).collect()),
        blocks: picked.blocks,
        weights,
        temperature: options.temperature,
        seed: options.seed,
        partial: prompt.partial(Some(picked.blocks)),
        store: store_status(picked.store),
    }))
}

pub(super) async fn done(
    Caller { api, grant, .. }: Caller,
    Body(request): Body<DoneRequest>,
) -> Result<Json<Success>, ApiError> {
    let key = request.scope.key(&grant)?;
    if request.request_id.is_empty() {
        return Err(ApiError::unprocessable("request_id is empty: send the one given to /pick"));
    }
    let phase = match request.phase.unwrap_or_default() {
        ApiPhase::Prefill => RequestPhase::PrefillEnded,
        ApiPhase::Finished => RequestPhase::Finished,
    };
    let hits = ReportedHits::of(phase, request.prompt_tokens, request.cached_tokens);
    let hits = hits.map_err(|error| ApiError::unprocessable(error.to_string()))?;
    match api.indexer.report_request(&key, &request.request_id, phase, hits)? {
        true => Ok(Json(Success::default())),
        false => Err(ApiError::not_found(NOT_IN_FLIGHT)),
    }
}
