//! `/pick` and `/done`: the choice of an instance for a request, and the end of the request.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use flash_indexer_api::{
    DoneRequest, Load, Pick, PickCandidate, PickWeights, PromptFields, RequestPhase as ApiPhase, Success,
};
use flash_indexer_registry::{Candidate, CostWeights, PickOptions, PodFilter, RequestPhase};
use flash_indexer_types::GivenInstanceId;

use super::Api;
use super::error::ApiError;
use super::extract::{Access, Body, Client};
use super::fields::{CheckedScope, store_status};
use super::prompt::{PromptBody, Prompted};
use super::prompt_body::{Caller, Keep, tokenize};

pub(super) async fn pick(
    State(api): State<Arc<Api>>,
    Access(grant): Access,
    Client(client): Client,
    body: PromptBody,
) -> Result<Response, ApiError> {
    body.answer(async move |prompted| pick_instance((&api, &grant, client), prompted).await).await
}

async fn pick_instance(
    caller: Caller<'_>,
    Prompted { mut request, json }: Prompted<PromptFields>,
) -> Result<Json<Pick>, ApiError> {
    if !request.has_prompt() {
        let missing = "the request does not fit: missing field `token_ids`, `prompt` or `messages`";
        return Err(ApiError::unprocessable(missing));
    }
    let pods = request.pods.take().unwrap_or_default().into_iter().map(GivenInstanceId::checked);
    let pods = PodFilter::of(pods.collect::<Result<Vec<_>, _>>()?.iter().map(|pod| pod.as_key().to_owned()));
    let options = options(&request)?;
    let (request_id, detail) = (request.request_id.take(), request.detail == Some(true));
    let prompt = tokenize(request, caller, &json, Keep::Tokens).await?;
    let (api, ..) = caller;
    let picked = api.indexer.pick(&prompt.key, prompt.as_prompt(), pods, options, request_id.as_deref()).await?;
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
        return Err(ApiError::unavailable(format!(
            "none of {} instances is ready; see the status of each in GET /workers, or name others in `pods`",
            picked.candidates.len()
        )));
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

/// The options of a pick. Without a seed, a random one.
fn options(request: &PromptFields) -> Result<PickOptions, ApiError> {
    let number = |name: &str, value: Option<f64>, default: f64| match value.unwrap_or(default) {
        value if value.is_finite() && value >= 0.0 => Ok(value),
        value => Err(ApiError::unprocessable(format!("{name} is {value}; send a number >= 0"))),
    };
    let defaults = CostWeights::default();
    let weights = CostWeights {
        prefill: number("prefill_weight", request.prefill_weight, defaults.prefill)?,
        active: number("active_weight", request.active_weight, defaults.active)?,
        requests: number("request_weight", request.request_weight, defaults.requests)?,
    };
    let temperature = number("pick_temperature", request.pick_temperature, 0.0)?;
    let seed = match request.pick_seed {
        Some(seed) => seed,
        None => u64::from(getrandom::u32().map_err(|error| {
            ApiError::unavailable(format!("failed to make a random seed: {error}; send pick_seed"))
        })?),
    };
    Ok(PickOptions { weights, temperature, seed, requests_max: None })
}

pub(super) async fn done(
    State(api): State<Arc<Api>>,
    Access(grant): Access,
    Body(request): Body<DoneRequest>,
) -> Result<Json<Success>, ApiError> {
    let key = request.scope.key(&grant)?;
    let phase = match request.phase.unwrap_or_default() {
        ApiPhase::Prefill => RequestPhase::PrefillEnded,
        ApiPhase::Finished => RequestPhase::Finished,
    };
    match api.indexer.report_request(&key, &request.request_id, phase)? {
        true => Ok(Json(Success::default())),
        false => Err(ApiError::not_found(
            "the request is not in flight: it has finished, was never reported with this request_id, or was dropped after 10 minutes",
        )),
    }
}
