//! Scores, and what routers say that they chose.

use std::time::Duration;

use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::sequence_hashes;

use super::{Indexer, QueryError};
use crate::score::{Predicted, ScoreOptions, Scores, Scoring};
use crate::search::{Query, TokenPrompt};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::{InstanceId, ModelKey};

/// A prediction cannot be recorded.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PredictError {
    /// There is no such model.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// There is no such pod.
    #[error("instance {pod} is not registered for model {:?} and tenant {:?}: name one of GET /workers", .key.model_name, .key.tenant_id)]
    UnknownPod {
        /// What it was called.
        pod: InstanceId,
        /// Where it was looked for.
        key: ModelKey,
    },
    /// It is to last longer than any prediction may.
    #[error("a prediction of {ttl:?} is longer than the {max:?} that one may last: name a shorter time")]
    TooLong {
        /// What was asked for.
        ttl: Duration,
        /// What is allowed.
        max: Duration,
    },
}

/// Longest time that a prediction may last. By then events have come, or will not come.
pub(crate) const PREDICTION_TTL_MAX: Duration = Duration::from_secs(600);

impl Indexer {
    /// What each pod's cache is worth to a prompt, predictions included; with a shared index of all replicas' pods, after one
    /// call of the store. Where blocks lie in slower tiers, it waits half a second at most for the index's writer, on another
    /// thread; otherwise, without a shared index, it does not wait.
    ///
    /// # Errors
    ///
    /// When nobody is registered for the model and tenant with any replica. That the store does not answer is no
    /// error: [`Scores::store`] says so.
    pub async fn score(
        &self,
        key: &ModelKey,
        prompt: TokenPrompt<'_>,
        options: &ScoreOptions,
    ) -> Result<Scores, QueryError> {
        let search = self.search_everywhere(key, Query::Tokens(prompt)).await?;
        let scoring =
            Scoring { weights: self.options.tier_weights, predictions: &self.predictions, lookups: &self.lookups };
        let scores = scoring.score(&search, options).await;
        let predicted = scores.pods.iter().map(|pod| u64::from(pod.predicted_blocks)).sum();
        self.metrics.scored(scores.pods.len(), predicted);
        Ok(scores)
    }

    /// A router sends this prompt to a pod of any replica: its blocks count there in this replica's scores until events tell
    /// of them, or the time has passed. Without a time, the one of the options.
    ///
    /// # Errors
    ///
    /// When the model or the pod is not registered, or the time is too long.
    pub fn predict(
        &self,
        key: &ModelKey,
        prompt: TokenPrompt<'_>,
        pod: &InstanceId,
        ttl: Option<Duration>,
    ) -> Result<Predicted, PredictError> {
        let ttl = ttl.unwrap_or(self.options.prediction_ttl);
        if ttl > PREDICTION_TTL_MAX {
            return Err(PredictError::TooLong { ttl, max: PREDICTION_TTL_MAX });
        }
        let search = self.search(key, Query::Tokens(prompt))?;
        let worker =
            search.worker(pod).ok_or_else(|| PredictError::UnknownPod { pod: pod.clone(), key: key.clone() })?;
        let mut all = Predicted::default();
        for query in &search.forms {
            let prefixes: Vec<SequenceHash> = sequence_hashes(query).collect();
            let predicted = self.predictions.predict(worker, &prefixes, ttl);
            all.blocks = predicted.blocks.max(all.blocks);
            all.forgotten += predicted.forgotten;
        }
        self.metrics.predicted();
        self.metrics.limit_reached_by(Limit::PredictedBlocks, all.forgotten);
        Ok(all)
    }
}
