//! The pick of an instance for a prompt, and the requests in flight that routers report.

use std::time::Duration;

use flash_indexer_routing::{Candidate, InFlightRequest, InstanceFilter, PickOptions, RequestKey, pick};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::names::{NameField, check_names};
use flash_indexer_types::{ConnectionStatus, InstanceId, ModelKey};

use super::scoring::PredictError;
use super::{Indexer, QueryError};
use crate::answer::StoreAnswer;
use crate::score::{ScoredInstance, Scoring};
use crate::search::{Query, Search, TokenPrompt};

/// Limit of the requests in flight that routers report.
pub(super) const REQUESTS_IN_FLIGHT_MAX: usize = 1 << 16;
/// Longest time for which a request counts as in flight. Its router may have crashed.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(600);

/// The instances for a prompt, and the one that was picked.
#[derive(Debug, Clone)]
pub struct PickResult {
    /// All instances that the filter admits, by name, with their loads before the pick.
    pub candidates: Vec<Candidate>,
    /// Index of the picked one; none if no candidate is ready and below the limit of requests.
    pub picked: Option<usize>,
    /// Complete blocks of the prompt.
    pub blocks: usize,
    /// Whether the scores include other replicas.
    pub store: StoreAnswer,
}

/// A router's report about a request in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPhase {
    /// The instance has computed the prompt.
    PrefillEnded,
    /// The request has finished.
    Finished,
}

/// Part of a prompt that an engine had cached, as it reports with the usage of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedHits {
    prompt_tokens: u64,
    cached_tokens: u64,
}

/// Numbers of tokens that are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReportedHitsError {
    /// One number is missing, or no engine reports them.
    #[error(
        "prompt_tokens and cached_tokens are given together, and no more tokens are cached than the prompt has, which are {PROMPT_TOKENS_MAX} at most; send both as the engine reports them, or neither"
    )]
    Numbers,
    /// The request has not finished, and would be counted twice.
    #[error(
        "prompt_tokens and cached_tokens are counted once, for a finished request; leave them out of phase prefill"
    )]
    Unfinished,
}

/// Limit of the tokens that one report counts: far above any prompt, and so low that sums of reports do not overflow.
const PROMPT_TOKENS_MAX: u64 = u32::MAX as u64;

impl ReportedHits {
    /// The reported hits of a request in this phase, if it has any.
    ///
    /// # Errors
    ///
    /// [`ReportedHitsError`] lists the rejected numbers.
    pub fn of(
        phase: RequestPhase,
        prompt_tokens: Option<u64>,
        cached_tokens: Option<u64>,
    ) -> Result<Option<Self>, ReportedHitsError> {
        match (prompt_tokens, cached_tokens) {
            (None, None) => Ok(None),
            _ if phase != RequestPhase::Finished => Err(ReportedHitsError::Unfinished),
            (Some(prompt_tokens), Some(cached_tokens))
                if cached_tokens <= prompt_tokens && prompt_tokens <= PROMPT_TOKENS_MAX =>
            {
                Ok(Some(Self { prompt_tokens, cached_tokens }))
            }
            _ => Err(ReportedHitsError::Numbers),
        }
    }
}

impl Indexer {
    /// Picks an instance for a prompt: the one with the lowest cost, or a random choice that `options` describe. With a
    /// `request_id` the request is in flight with that instance from then on, and its prompt is predicted ([`Indexer::predict`]).
    /// Concurrent picks with a `request_id` see each other's requests.
    ///
    /// Costs a score of all instances.
    ///
    /// # Errors
    ///
    /// If no instance of the filter is registered for the model and tenant with any replica, or if a name is too long.
    pub async fn pick(
        &self,
        key: &ModelKey,
        prompt: TokenPrompt<'_>,
        filter: InstanceFilter,
        options: PickOptions,
        request_id: Option<&str>,
    ) -> Result<PickResult, PredictError> {
        check_request_id(request_id)?;
        let search = self.search_fleet(key, Query::Tokens(prompt)).await?;
        let scored = self.scoring().score_all(&search, &filter).await;
        if scored.is_empty()
            && let Some(instance) = filter.first().cloned()
        {
            return Err(PredictError::UnknownInstance { instance, key: key.clone() });
        }
        let blocks = search.blocks();
        let picked = {
            let now = self.elapsed();
            let mut in_flight = self.in_flight.lock();
            in_flight.expire(now);
            let candidate = |ScoredInstance { worker, score }: &ScoredInstance| Candidate {
                instance: score.instance.clone(),
                score: score.score,
                held_blocks: score.held_blocks,
                predicted_blocks: score.predicted_blocks,
                trust: score.trust,
                load: in_flight.load(*worker),
                is_ready: is_ready(&search, &score.instance),
            };
            let candidates: Vec<Candidate> = scored.iter().map(candidate).collect();
            let picked = pick(&candidates, blocks, options);
            if let (Some(at), Some(request_id)) = (picked, request_id) {
                let request = InFlightRequest {
                    worker: scored[at].worker,
                    blocks: whole(blocks as f64),
                    prefill_blocks: whole(candidates[at].new_blocks(blocks)),
                };
                let dropped = in_flight.begin(request_key(key, request_id), request, now, now + IN_FLIGHT_MAX);
                self.metrics.limit_reached_by(Limit::RequestsInFlight, dropped);
            }
            PickResult { candidates, picked, blocks, store: search.store }
        };
        drop(search);
        if let (Some(at), Some(_)) = (picked.picked, request_id) {
            self.predict(key, prompt, &picked.candidates[at].instance, None).await?;
        }
        Ok(picked)
    }

    /// Records that a router has sent a request to an instance, which is in flight from then on.
    ///
    /// # Errors
    ///
    /// If the model or the instance is not registered, or if a name is too long.
    pub async fn begin_request(
        &self,
        key: &ModelKey,
        prompt: TokenPrompt<'_>,
        instance: &InstanceId,
        request_id: &str,
    ) -> Result<(), PredictError> {
        check_request_id(Some(request_id))?;
        let search = self.search_fleet(key, Query::Tokens(prompt)).await?;
        let filter = InstanceFilter::from_iter([instance.clone()]);
        let scored = self.scoring().score_all(&search, &filter).await;
        let unknown = || PredictError::UnknownInstance { instance: instance.clone(), key: key.clone() };
        let ScoredInstance { worker, score } = scored.into_iter().next().ok_or_else(unknown)?;
        let blocks = search.blocks();
        let prefill_blocks = whole((blocks as f64 - score.score).max(0.0));
        let request = InFlightRequest { worker, blocks: whole(blocks as f64), prefill_blocks };
        let now = self.elapsed();
        let dropped = self.in_flight.lock().begin(request_key(key, request_id), request, now, now + IN_FLIGHT_MAX);
        self.metrics.limit_reached_by(Limit::RequestsInFlight, dropped);
        Ok(())
    }

    /// Records a router's report about a request. False if the request is not in flight: it was never reported, has finished, or
    /// was dropped after ten minutes or because of the limit.
    ///
    /// # Errors
    ///
    /// If the request's name is too long, or has a control character.
    pub fn report_request(
        &self,
        key: &ModelKey,
        request_id: &str,
        phase: RequestPhase,
        hits: Option<ReportedHits>,
    ) -> Result<bool, QueryError> {
        check_request_id(Some(request_id))?;
        let request = request_key(key, request_id);
        let was_in_flight = {
            let mut in_flight = self.in_flight.lock();
            in_flight.expire(self.elapsed());
            match phase {
                RequestPhase::PrefillEnded => in_flight.end_prefill(&request),
                RequestPhase::Finished => in_flight.end(&request),
            }
        };
        if let Some(hits) = hits.filter(|_| was_in_flight) {
            self.report_hits(key, hits);
        }
        Ok(was_in_flight)
    }

    /// Counts a request whose engine had a part of the prompt cached, if the model is registered with this replica.
    pub fn report_hits(&self, key: &ModelKey, hits: ReportedHits) {
        if let Ok(model) = self.model(key) {
            model.counts.hits_reported(hits.prompt_tokens, hits.cached_tokens);
        }
    }

    pub(super) fn scoring(&self) -> Scoring<'_> {
        Scoring { weights: self.options.tier_weights, predictions: &self.predictions, tier_lookups: &self.tier_lookups }
    }

    /// Time since the indexer started.
    fn elapsed(&self) -> Duration {
        self.supervisor.clock().now().saturating_duration_since(self.started)
    }
}

fn check_request_id(request_id: Option<&str>) -> Result<(), QueryError> {
    Ok(check_names([(NameField::RequestId, request_id)])?)
}

fn request_key(key: &ModelKey, request_id: &str) -> RequestKey {
    RequestKey { model: key.clone(), request_id: request_id.to_owned() }
}

/// A number of blocks, rounded.
fn whole(blocks: f64) -> u32 {
    blocks.round() as u32
}

/// Whether all engines of an instance are connected. True for an instance of another replica.
fn is_ready(search: &Search<'_>, instance: &InstanceId) -> bool {
    let Some(model) = &search.local else { return true };
    let instances = model.instances.read();
    let Some(known) = instances.get(instance) else { return true };
    let mut listeners = known.listeners.values();
    !known.listeners.is_empty() && listeners.all(|listener| listener.connection() == ConnectionStatus::Connected)
}
