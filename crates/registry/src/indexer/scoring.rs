//! Scores of instances, and predictions that routers report.

use std::sync::Arc;
use std::time::Duration;

use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_ingest::Listener;
use flash_indexer_routing::RecordedPrediction;
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::{InstanceId, ModelKey};

use super::{Indexer, QueryError};
use crate::score::{ScoreOptions, Scores};
use crate::search::{Query, TokenPrompt};

/// A prediction cannot be recorded.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PredictError {
    /// The query is invalid, or no instance is registered for the model.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The instance is not registered.
    #[error("instance {instance} is not registered for model {:?} and tenant {:?}; use one that GET /workers lists", .key.model_name, .key.tenant_id)]
    UnknownInstance {
        /// The instance.
        instance: InstanceId,
        /// Model and tenant.
        key: ModelKey,
    },
    /// The time to live exceeds the limit.
    #[error("the time to live {ttl:?} of the prediction exceeds the limit of {max:?}; use a shorter one")]
    TooLong {
        /// The requested time to live.
        ttl: Duration,
        /// The limit.
        max: Duration,
    },
}

/// Longest time to live of a prediction. Events that confirm a prediction arrive well before.
pub(crate) const PREDICTION_TTL_MAX: Duration = Duration::from_secs(600);

impl Indexer {
    /// Scores each instance for a prompt, with predictions. With a shared store it includes the instances of all replicas and
    /// waits for one call for each hash variant. If blocks are in slower tiers, it waits up to half a second for the
    /// index's writer. Otherwise it does not wait.
    ///
    /// # Errors
    ///
    /// If no instance is registered for the model and tenant with any replica. An unavailable store is not an error if
    /// an instance is registered with this replica: [`Scores::store`] reports it.
    pub async fn score(
        &self,
        key: &ModelKey,
        prompt: TokenPrompt<'_>,
        options: &ScoreOptions,
    ) -> Result<Scores, QueryError> {
        let search = self.search_fleet(key, Query::Tokens(prompt)).await?;
        let scores = self.scoring().score(&search, options).await;
        let predicted = scores.instances.iter().map(|scored| u64::from(scored.predicted_blocks)).sum();
        self.metrics.scored(scores.instances.len(), predicted);
        Ok(scores)
    }

    /// Records that a router sends a prompt to an instance of any replica. The prompt's blocks count for the instance in this
    /// replica's scores until events confirm them or the time to live has passed. Without a `ttl`, the default of the
    /// options applies.
    ///
    /// An instance without events is assumed to hold the blocks from then on, in every answer. This waits until the writer
    /// has applied them, but not longer than half a second.
    ///
    /// # Errors
    ///
    /// If the model or the instance is not registered, or the time to live exceeds the limit.
    pub async fn predict(
        &self,
        key: &ModelKey,
        prompt: TokenPrompt<'_>,
        instance: &InstanceId,
        ttl: Option<Duration>,
    ) -> Result<RecordedPrediction, PredictError> {
        if let Some(ttl) = ttl.filter(|ttl| *ttl > PREDICTION_TTL_MAX) {
            return Err(PredictError::TooLong { ttl, max: PREDICTION_TTL_MAX });
        }
        if let Some(listener) = self.listener_without_events(key, instance) {
            Query::Tokens(prompt).check(key).map_err(QueryError::from)?;
            if self.recent_prompts.is_some() {
                self.keep_prompt(key, &self.search(key, Query::Tokens(prompt))?);
            }
            let times = (self.supervisor.clock().now(), ttl.unwrap_or(self.options.routed_ttl));
            let blocks = self.routed.record(&listener, prompt, times, (&self.decoders, &self.metrics));
            self.metrics.predicted();
            self.prediction_waits.applied(&listener, &self.decoders).await;
            return Ok(RecordedPrediction { blocks, evicted: 0 });
        }
        let ttl = ttl.unwrap_or(self.options.prediction_ttl);
        let search = self.search(key, Query::Tokens(prompt))?;
        self.keep_prompt(key, &search);
        let worker = search
            .worker(instance)
            .ok_or_else(|| PredictError::UnknownInstance { instance: instance.clone(), key: key.clone() })?;
        let mut total = RecordedPrediction::default();
        for query in &search.variants {
            let prefixes: Vec<SequenceHash> = sequence_hashes(query).collect();
            let predicted = self.predictions.predict(worker, &prefixes, ttl);
            total.blocks = predicted.blocks.max(total.blocks);
            total.evicted += predicted.evicted;
        }
        self.metrics.predicted();
        self.metrics.limit_reached_by(Limit::PredictedBlocks, total.evicted);
        Ok(total)
    }

    /// The listener of an instance without events.
    fn listener_without_events(&self, key: &ModelKey, instance: &InstanceId) -> Option<Arc<Listener>> {
        let model = self.model(key).ok()?;
        let instances = model.instances.read();
        let listener = instances.get(instance)?.listeners.values().next()?;
        (!listener.options.has_events()).then(|| Arc::clone(listener))
    }
}
