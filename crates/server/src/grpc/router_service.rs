//! `flash_indexer.v1.RouterService`: queries by tokens or hashes, single or in a stream, predictions, and picks.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::time::Duration;

use flash_indexer_access::Grant;
use flash_indexer_core::{LocalHash, Tier};
use flash_indexer_registry::{
    Answer, Candidate, CostWeights, Query, QueryOptions, RankAnswer, ReportedHits, RequestPhase, TokenPrompt,
};
use flash_indexer_traces::{Stage, stage};
use flash_indexer_types::names::{NameField, check_names};
use flash_indexer_types::{InstanceId, ModelKey};
use tonic::{Request, Response, Status, Streaming};

use super::GrpcState;
use super::answers::{Answers, Requests};
use super::lists::{read_list, read_tokens};
use super::proto::router_service_server::RouterService;
use super::proto::{
    self, DoneRequest, DoneResponse, PickCandidate, PickRequest, PickResponse, PredictRequest, PredictResponse,
    QueryRequest, QueryResponse, RankMatch,
};
use super::status::{RpcError, authorization, within_deadline};
use crate::access::tokens_of_blocks;
use crate::http::{NOT_IN_FLIGHT, none_ready};
use crate::pick_options::UncheckedPickOptions;
use crate::traced::describe_model;

pub(super) struct Router(pub(super) GrpcState);

#[tonic::async_trait]
impl RouterService for Router {
    async fn query(&self, request: Request<QueryRequest>) -> Result<Response<QueryResponse>, Status> {
        let in_flight = self.0.in_flight("Query");
        let (metadata, extensions, request) = request.into_parts();
        in_flight.finish(within_deadline(&extensions, self.0.query(&request, authorization(&metadata))).await)
    }

    type QueryStreamStream = Answers;

    async fn query_stream(&self, request: Request<Streaming<QueryRequest>>) -> Result<Response<Answers>, Status> {
        let (metadata, requests) = Requests::of(request, self.0.body_bytes_max);
        // Without a permitted token the entire stream fails. Each of its requests is checked again.
        if let Err(denied) = self.0.admit(authorization(&metadata)) {
            return self.0.in_flight("QueryStream").finish(Err(denied));
        }
        Ok(Response::new(Answers::to(requests, &metadata, &self.0)))
    }

    async fn predict(&self, request: Request<PredictRequest>) -> Result<Response<PredictResponse>, Status> {
        let in_flight = self.0.in_flight("Predict");
        let (metadata, extensions, request) = request.into_parts();
        in_flight.finish(within_deadline(&extensions, self.0.predict(&request, authorization(&metadata))).await)
    }

    async fn pick(&self, request: Request<PickRequest>) -> Result<Response<PickResponse>, Status> {
        let in_flight = self.0.in_flight("Pick");
        let (metadata, extensions, request) = request.into_parts();
        in_flight.finish(within_deadline(&extensions, self.0.pick(request, authorization(&metadata))).await)
    }

    async fn done(&self, request: Request<DoneRequest>) -> Result<Response<DoneResponse>, Status> {
        let in_flight = self.0.in_flight("Done");
        let (metadata, _, request) = request.into_parts();
        in_flight.finish(self.0.done(&request, authorization(&metadata)))
    }
}

impl GrpcState {
    pub(super) async fn query(
        &self,
        request: &QueryRequest,
        authorization: Option<&[u8]>,
    ) -> Result<QueryResponse, RpcError> {
        let QueryInput { key, prompt, options } = self.admit_query(request, authorization)?;
        Ok(response(self.indexer.query(&key, prompt.query(request), options).await?, request))
    }

    /// Queries this replica's ranks only, without waiting for the shared store.
    pub(super) fn query_local(
        &self,
        request: &QueryRequest,
        authorization: Option<&[u8]>,
    ) -> Result<QueryResponse, RpcError> {
        let QueryInput { key, prompt, options } = self.admit_query(request, authorization)?;
        Ok(response(self.indexer.query_local(&key, prompt.query(request), options)?, request))
    }

    /// Parses a query of a permitted tenant whose limits admit it.
    fn admit_query<'r>(
        &self,
        request: &'r QueryRequest,
        authorization: Option<&[u8]>,
    ) -> Result<QueryInput<'r>, RpcError> {
        let grant = self.admit(authorization)?;
        let prompt = PromptInput::of(request)?;
        let key = model_key(&request.model_name, &request.tenant_id, &grant)?;
        let tokens = match &prompt {
            PromptInput::Tokens(tokens) => tokens.len(),
            PromptInput::Hashes(_) if !request.lora_name.is_empty() || !request.cache_salt.is_empty() => {
                let message =
                    "block_hashes already include the adapter and the salt: leave out lora_name and cache_salt";
                return Err(Status::invalid_argument(message).into());
            }
            PromptInput::Hashes(hashes) => tokens_of_blocks(&self.indexer, &key, hashes.len()),
        };
        self.access.admit_query(&key, tokens)?;
        let options = QueryOptions {
            top_k: NonZeroUsize::new(request.top_k as usize),
            min_score: (request.min_score > 0).then_some(request.min_score),
            after: request.after,
        };
        Ok(QueryInput { key, prompt, options })
    }

    async fn predict(
        &self,
        request: &PredictRequest,
        authorization: Option<&[u8]>,
    ) -> Result<PredictResponse, RpcError> {
        let grant = self.admit(authorization)?;
        let key = model_key(&request.model_name, &request.tenant_id, &grant)?;
        let pod = InstanceId::parse(&request.pod)?;
        let ttl = (request.ttl_ms > 0).then(|| Duration::from_millis(request.ttl_ms.into()));
        let tokens = read_tokens(&request.token_ids, &request.token_bytes)?;
        self.access.admit_query(&key, tokens.len())?;
        let prompt = token_prompt(&tokens, &request.lora_name, &request.cache_salt);
        if let Some(request_id) = given(&request.request_id) {
            // Called before the prediction: after it, no block would have to be computed.
            self.indexer.begin_request(&key, prompt, &pod, request_id).await?;
        }
        let predicted = self.indexer.predict(&key, prompt, &pod, ttl).await?;
        Ok(PredictResponse { blocks: predicted.blocks as u32 })
    }

    async fn pick(&self, request: PickRequest, authorization: Option<&[u8]>) -> Result<PickResponse, RpcError> {
        let grant = self.admit(authorization)?;
        let key = model_key(&request.model_name, &request.tenant_id, &grant)?;
        let pods = request.pods.iter().map(|pod| InstanceId::parse(pod)).collect::<Result<_, _>>()?;
        let options = UncheckedPickOptions {
            prefill_weight: request.prefill_weight,
            active_weight: request.active_weight,
            request_weight: request.request_weight,
            pick_temperature: Some(request.pick_temperature),
            pick_seed: request.pick_seed,
        };
        let options = options.checked()?;
        let tokens = read_tokens(&request.token_ids, &request.token_bytes)?;
        self.access.admit_query(&key, tokens.len())?;
        let prompt = token_prompt(&tokens, &request.lora_name, &request.cache_salt);
        let picked = self.indexer.pick(&key, prompt, pods, options, given(&request.request_id)).await?;
        let _answer = stage(Stage::Answer);
        let shown = |candidate: &Candidate| candidate_message(candidate, picked.blocks, options.weights);
        let Some(chosen) = picked.picked.map(|at| &picked.candidates[at]) else {
            return Err(Status::unavailable(none_ready(picked.candidates.len())).into());
        };
        Ok(PickResponse {
            picked: Some(shown(chosen)),
            candidates: if request.detail { picked.candidates.iter().map(shown).collect() } else { Vec::new() },
            blocks: picked.blocks as u64,
            prefill_weight: options.weights.prefill,
            active_weight: options.weights.active,
            request_weight: options.weights.requests,
            temperature: options.temperature,
            seed: options.seed,
            store: picked.store.as_str().unwrap_or_default().to_owned(),
        })
    }

    fn done(&self, request: &DoneRequest, authorization: Option<&[u8]>) -> Result<DoneResponse, RpcError> {
        let grant = self.admit(authorization)?;
        let key = model_key(&request.model_name, &request.tenant_id, &grant)?;
        if request.request_id.is_empty() {
            return Err(Status::invalid_argument("request_id is missing; send the one given to Pick").into());
        }
        let phase = match proto::RequestPhase::try_from(request.phase) {
            Ok(proto::RequestPhase::Prefill) => RequestPhase::PrefillEnded,
            Ok(proto::RequestPhase::Finished) => RequestPhase::Finished,
            Err(unknown) => {
                let message = format!("phase is {}; send 0 (finished) or 1 (prefill)", unknown.0);
                return Err(Status::invalid_argument(message).into());
            }
        };
        let hits = ReportedHits::of(phase, request.prompt_tokens, request.cached_tokens);
        let hits = hits.map_err(|error| Status::invalid_argument(error.to_string()))?;
        match self.indexer.report_request(&key, &request.request_id, phase, hits)? {
            true => Ok(DoneResponse {}),
            false => Err(Status::not_found(NOT_IN_FLIGHT).into()),
        }
    }
}

/// Parsed query request.
struct QueryInput<'r> {
    key: ModelKey,
    prompt: PromptInput<'r>,
    options: QueryOptions,
}

/// Prompt of a query request.
enum PromptInput<'r> {
    Tokens(Cow<'r, [u32]>),
    Hashes(Cow<'r, [LocalHash]>),
}

impl<'r> PromptInput<'r> {
    /// The prompt as the indexer takes it, with the adapter and the salt of its request.
    fn query<'p>(&'p self, request: &'p QueryRequest) -> Query<'p> {
        match self {
            Self::Tokens(tokens) => Query::Tokens(token_prompt(tokens, &request.lora_name, &request.cache_salt)),
            Self::Hashes(hashes) => Query::Hashes(Cow::Borrowed(hashes)),
        }
    }

    fn of(request: &'r QueryRequest) -> Result<Self, RpcError> {
        let tokens = read_tokens(&request.token_ids, &request.token_bytes)?;
        let hashes: Cow<'_, [LocalHash]> = request.block_hashes.iter().copied().map(LocalHash).collect();
        let hashes = read_list(hashes, &request.hash_bytes, ["block_hashes", "hash_bytes"])?;
        match (tokens.is_empty(), hashes.is_empty()) {
            (_, true) => Ok(Self::Tokens(tokens)),
            (true, false) => Ok(Self::Hashes(hashes)),
            (false, false) => {
                let message = "token_ids and block_hashes are alternatives: give one of them";
                Err(Status::invalid_argument(message).into())
            }
        }
    }
}

fn candidate_message(candidate: &Candidate, blocks: usize, weights: CostWeights) -> PickCandidate {
    PickCandidate {
        pod: candidate.instance.to_string(),
        cost: candidate.cost(blocks, weights),
        score: candidate.score,
        held_blocks: candidate.held_blocks,
        predicted_blocks: candidate.predicted_blocks,
        trust: candidate.trust.as_str().to_owned(),
        ready: candidate.is_ready,
        load_requests: candidate.load.requests,
        load_prefill_blocks: candidate.load.prefill_blocks,
        load_active_blocks: candidate.load.active_blocks,
    }
}

fn response(answer: Answer, request: &QueryRequest) -> QueryResponse {
    let _answer = stage(Stage::Answer);
    let rank = |rank: &RankAnswer| RankMatch {
        instance_id: answer.name(rank).id().to_string(),
        dp_rank: rank.dp_rank.0,
        gpu: rank.tokens[Tier::Device],
        cpu: rank.tokens[Tier::Host],
        disk: rank.tokens[Tier::Disk],
        longest_matched: rank.tokens[Tier::External],
        trust: rank.trust.as_str().to_owned(),
        tree_size: request.tree_sizes.then_some(rank.blocks_held as u64),
        partial: rank.partial,
    };
    QueryResponse {
        request_id: request.request_id,
        ranks: answer.ranks.iter().map(rank).collect(),
        frequencies: answer.frequencies,
        store: answer.store.as_str().unwrap_or_default().to_owned(),
        error: None,
        cursor: answer.cursor.map(|cursor| cursor.cursor),
        cursor_tokens: answer.cursor.map_or(0, |cursor| cursor.tokens),
    }
}

/// Key of the index that a request names, if its grant permits the tenant.
pub(super) fn model_key(model_name: &str, tenant_id: &str, grant: &Grant) -> Result<ModelKey, RpcError> {
    if model_name.is_empty() {
        return Err(Status::invalid_argument("model_name is missing: name the model as it was registered").into());
    }
    // Checked before the names are copied.
    check_names([(NameField::ModelName, Some(model_name)), (NameField::TenantId, Some(tenant_id))])?;
    grant.check_tenant(given(tenant_id).unwrap_or(ModelKey::DEFAULT_TENANT))?;
    let key = ModelKey::new(model_name, given(tenant_id).map(str::to_owned));
    describe_model(&key);
    Ok(key)
}

/// A prompt of tokens, with the adapter and the salt of its request.
pub(super) fn token_prompt<'r>(tokens: &'r [u32], lora_name: &'r str, cache_salt: &'r str) -> TokenPrompt<'r> {
    TokenPrompt { tokens, lora_name: given(lora_name), cache_salt: given(cache_salt) }
}

/// Value of a text field; none if it is empty, like an absent field.
fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
