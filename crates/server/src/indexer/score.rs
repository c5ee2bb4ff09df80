//! Scores, and what routers say that they chose.

use std::time::Duration;

use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{LocalHash, MatchScores, SequenceHash};
use flash_indexer_prompt::score::Predicted;

use super::{Indexer, QueryError};
use crate::instance::{InstanceId, ModelKey};
use crate::metrics::Bound;
use crate::score::{ScoreOptions, Scores, Scoring};

/// Tokens of a prompt and what they were computed with.
#[derive(Debug, Clone, Copy)]
pub struct TokenPrompt<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// The adapter; without one, that of all of the model's registrations.
    pub lora_name: Option<&'a str>,
    /// The cache salt.
    pub cache_salt: Option<&'a str>,
}

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
    /// What each pod's cache is worth to a prompt, predictions included.
    ///
    /// # Errors
    ///
    /// When nobody is registered for the model and tenant.
    pub fn score(&self, key: &ModelKey, prompt: TokenPrompt<'_>, options: &ScoreOptions) -> Result<Scores, QueryError> {
        let model = self.model(key)?;
        let space = model.hash_space(prompt.lora_name, prompt.cache_salt);
        let queries: Vec<(Vec<LocalHash>, MatchScores)> = model
            .forms(space, prompt.tokens)
            .map(|query| {
                let found = model.find_prompt(&query, prompt.tokens.len());
                (query, found)
            })
            .collect();
        model.note_query(&queries);
        let scoring = Scoring { weights: self.options.tier_weights, predictions: &self.predictions };
        Ok(model.score(&queries, options, &scoring))
    }

    /// A router sends this prompt to a pod: its blocks count there until events tell of them, or the time has passed. Without
    /// a time, the one of the options.
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
        let model = self.model(key)?;
        let worker = model.instances.read().get(pod).map(|instance| instance.worker);
        let worker = worker.ok_or_else(|| PredictError::UnknownPod { pod: pod.clone(), key: key.clone() })?;
        let mut all = Predicted::default();
        let space = model.hash_space(prompt.lora_name, prompt.cache_salt);
        for query in model.forms(space, prompt.tokens) {
            let prefixes: Vec<SequenceHash> = sequence_hashes(&query).collect();
            let predicted = self.predictions.predict(worker, &prefixes, ttl);
            all.blocks = predicted.blocks.max(all.blocks);
            all.forgotten += predicted.forgotten;
        }
        self.metrics.predicted();
        self.metrics.bounded(Bound::PredictedBlocks, all.forgotten);
        Ok(all)
    }
}
