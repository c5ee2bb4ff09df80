//! The choice of an instance for a request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use flash_indexer_access::Grant;
use flash_indexer_admission::{LARGE_BYTES, LargeRequests};
use flash_indexer_registry::{CostWeights, InstanceFilter, PickOptions, RequestPhase, TokenPrompt};
use flash_indexer_telemetry::metrics::{Limit, PickOutcome};
use flash_indexer_types::{InstanceId, ModelKey};
use tracing::debug;

use super::EndpointPickerOptions;
use super::messages::Subset;
use crate::http::{Api, ApiError, Caller, OpenAiEndpoint, TokenizedPrompt, tokenize_openai};

/// Longest time for the prompt of a request to be tokenized. After it, the instance of least load is picked.
const TOKENIZE_DEADLINE: Duration = Duration::from_secs(5);

/// Picks instances for the requests of gateways.
pub(in crate::grpc) struct Picker {
    pub(super) api: Arc<Api>,
    pub(super) options: EndpointPickerOptions,
    /// Part of the names of its requests that no client can guess.
    secret: u64,
    requests: AtomicU64,
}

/// Inputs of a pick.
pub(super) struct PickInput {
    /// The body of a request with a prompt, or why there is none.
    pub(super) body: Result<(OpenAiEndpoint, Bytes), PickOutcome>,
    pub(super) subset: Option<Subset>,
    pub(super) client: (Arc<Grant>, Option<IpAddr>),
}

/// The instance of a request.
pub(super) struct PickedInstance {
    pub(super) address: SocketAddr,
    pub(super) in_flight: InFlight,
}

/// Why no instance is picked for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No instance is ready.
    NotReady,
    /// Every ready instance has reached its limit of requests.
    Full,
}

impl Refusal {
    /// Status and message for the client.
    pub(super) fn answer(self) -> (u16, &'static str) {
        match self {
            Self::NotReady => (503, "no instance is ready for the request; retry later"),
            Self::Full => (429, "every instance has its maximum number of requests in flight; retry later"),
        }
    }
}

/// A request in flight, which ends when this is dropped.
pub(super) struct InFlight {
    picker: Arc<Picker>,
    key: ModelKey,
    request_id: String,
}

impl InFlight {
    /// Records that the instance has computed the prompt.
    pub(super) fn end_prefill(&self) {
        self.report(RequestPhase::PrefillEnded);
    }

    fn report(&self, phase: RequestPhase) {
        // The request may have been dropped because of its age or the limit. Its name is valid.
        let _ = self.picker.api.indexer.report_request(&self.key, &self.request_id, phase, None);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.report(RequestPhase::Finished);
    }
}

impl Picker {
    pub(in crate::grpc) fn new(api: Arc<Api>, options: EndpointPickerOptions) -> Self {
        // Without randomness a client of `/done` could end the requests of others. Only loads would be wrong.
        let secret = getrandom::u64().unwrap_or_default();
        Self { api, options, secret, requests: AtomicU64::new(0) }
    }

    /// Chooses an instance: by the prompt, or the one of least load if the prompt is not known.
    pub(super) async fn choose(self: Arc<Self>, input: PickInput) -> Result<PickedInstance, Refusal> {
        let is_large = input.body.as_ref().is_ok_and(|(_, body)| body.len() > LARGE_BYTES);
        if !is_large || LargeRequests::is_current_thread() {
            return self.choose_here(input).await;
        }
        let (body, subset, client) = (Err(PickOutcome::Failed), input.subset.clone(), input.client.clone());
        let retry = PickInput { body, subset, client };
        let client = self.api.bodies.budget.body(retry.client.1).client();
        match self.api.bodies.large_requests.run(client, Arc::clone(&self).choose_here(input)).await {
            Ok(chosen) => chosen,
            Err(error) => {
                debug!(%error, "failed to score a request; picking the instance of least load");
                self.choose_here(retry).await
            }
        }
    }

    async fn choose_here(self: Arc<Self>, input: PickInput) -> Result<PickedInstance, Refusal> {
        let PickInput { body, subset, client } = input;
        let mut known = None;
        let (picked, outcome) = match self.prompt(body, &client).await {
            Ok(prompt) if self.api.indexer.block_size_of(&prompt.key).is_none() => (None, PickOutcome::UnknownModel),
            Ok(prompt) => {
                let picked = self.pick(&prompt.key, prompt.as_prompt(), CostWeights::default(), subset.as_ref()).await;
                known = Some(prompt.key.clone());
                match picked {
                    Ok(picked) => (Some(picked), PickOutcome::Scored),
                    Err(error) => (None, failure(&self.api, &error)),
                }
            }
            Err(outcome) => (None, outcome),
        };
        let picked = match picked {
            Some(picked) => picked,
            None => self.pick_by_load(known, subset.as_ref()).await,
        };
        let outcome = match &picked {
            Ok(_) => outcome,
            Err(Refusal::NotReady) => PickOutcome::NotReady,
            Err(Refusal::Full) => PickOutcome::Full,
        };
        let metrics = self.api.indexer.metrics();
        if outcome == PickOutcome::Full {
            metrics.limit_reached(Limit::InstanceRequests);
        }
        metrics.endpoint_picked(outcome);
        picked
    }

    async fn prompt(
        &self,
        body: Result<(OpenAiEndpoint, Bytes), PickOutcome>,
        (grant, client): &(Arc<Grant>, Option<IpAddr>),
    ) -> Result<TokenizedPrompt, PickOutcome> {
        let (endpoint, body) = body?;
        let base_model = self.base_model();
        let caller = Caller { api: Arc::clone(&self.api), grant: Arc::clone(grant), client: *client };
        let prompt = tokenize_openai((endpoint, &body), &self.options.tenant_id, base_model.as_ref(), &caller);
        match tokio::time::timeout(TOKENIZE_DEADLINE, prompt).await {
            Ok(prompt) => prompt.map_err(|error| failure(&self.api, &error)),
            Err(_) => Err(PickOutcome::Failed),
        }
    }

    /// The model of requests that name none: the only one of the tenant, or else the configured one, if it is registered.
    fn base_model(&self) -> Option<ModelKey> {
        let models = self.api.indexer.models_of_tenant(&self.options.tenant_id);
        match &models[..] {
            [only] => Some(only.clone()),
            _ => models.into_iter().find(|key| key.model_name == self.options.model_name),
        }
    }

    /// Picks the instance of a model with the least load; without a model, among those of all models.
    async fn pick_by_load(
        self: &Arc<Self>,
        known: Option<ModelKey>,
        subset: Option<&Subset>,
    ) -> Result<PickedInstance, Refusal> {
        let models = match known.or_else(|| self.base_model()) {
            Some(model) => vec![model],
            None => self.api.indexer.models_of_tenant(&self.options.tenant_id),
        };
        let weights = CostWeights { requests: 1.0, ..CostWeights::default() };
        let nothing = TokenPrompt { tokens: &[], lora_name: None, cache_salt: None };
        let mut least: Option<(f64, ModelKey)> = None;
        let mut refusal = Refusal::NotReady;
        for model in models {
            let (filter, _) = self.instances(&model, subset);
            let Some(filter) = filter else { continue };
            let Ok(picked) = self.api.indexer.pick(&model, nothing, filter, self.options(weights), None).await else {
                continue;
            };
            match picked.picked.map(|at| &picked.candidates[at]) {
                None if picked.candidates.iter().any(|candidate| candidate.is_ready) => refusal = Refusal::Full,
                None => {}
                Some(candidate) => {
                    let cost = candidate.cost(0, weights);
                    if least.as_ref().is_none_or(|(least, _)| cost < *least) {
                        least = Some((cost, model));
                    }
                }
            }
        }
        let Some((_, model)) = least else { return Err(refusal) };
        self.pick(&model, nothing, weights, subset).await.unwrap_or(Err(Refusal::NotReady))
    }

    async fn pick(
        self: &Arc<Self>,
        key: &ModelKey,
        prompt: TokenPrompt<'_>,
        weights: CostWeights,
        subset: Option<&Subset>,
    ) -> Result<Result<PickedInstance, Refusal>, ApiError> {
        let (Some(filter), addresses) = self.instances(key, subset) else { return Ok(Err(Refusal::NotReady)) };
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let request_id = format!("endpoint-picker/{:016x}/{number}", self.secret);
        // Made first: if the call is dropped while it picks, the request ends.
        let in_flight = InFlight { picker: Arc::clone(self), key: key.clone(), request_id };
        let options = self.options(weights);
        let picked = self.api.indexer.pick(key, prompt, filter, options, Some(&in_flight.request_id)).await?;
        let Some(chosen) = picked.picked.map(|at| &picked.candidates[at]) else {
            let is_full = picked.candidates.iter().any(|candidate| candidate.is_ready);
            return Ok(Err(if is_full { Refusal::Full } else { Refusal::NotReady }));
        };
        let address = addresses.iter().find(|(instance, _)| *instance == chosen.instance).map(|(_, address)| *address);
        Ok(address.map(|address| PickedInstance { address, in_flight }).ok_or(Refusal::NotReady))
    }

    fn options(&self, weights: CostWeights) -> PickOptions {
        // Equal costs are spread by the seed. Without randomness the first by its hash is picked.
        let seed = getrandom::u64().unwrap_or_default();
        PickOptions { weights, temperature: 0.0, seed, requests_max: self.options.requests_max }
    }

    /// The instances of a model that a gateway can reach and permits; no filter if there are none.
    fn instances(
        &self,
        key: &ModelKey,
        subset: Option<&Subset>,
    ) -> (Option<InstanceFilter>, Vec<(InstanceId, SocketAddr)>) {
        let mut addresses = self.api.indexer.addresses(key, self.options.target_port);
        addresses.retain(|(_, address)| subset.is_none_or(|subset| subset.admits(*address)));
        let filter = (!addresses.is_empty()).then(|| addresses.iter().map(|(instance, _)| instance.clone()).collect());
        (filter, addresses)
    }
}

/// Counts and logs why a request is not scored.
fn failure(api: &Api, error: &ApiError) -> PickOutcome {
    debug!(error = error.message, "failed to score a request; picking the instance of least load");
    if let Some(limit) = error.limit {
        api.indexer.metrics().limit_reached(limit);
    }
    match error.status.as_u16() {
        400 | 422 => PickOutcome::InvalidBody,
        404 => PickOutcome::UnknownModel,
        _ => PickOutcome::Failed,
    }
}
