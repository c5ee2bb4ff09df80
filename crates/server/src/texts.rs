//! Texts that are tokenized, shared fairly between clients.

use std::net::IpAddr;
use std::sync::Arc;

use flash_indexer_admission::{Bodies, BodyBudget, FairSemaphore, QueueFull};
use flash_indexer_prompt::tokenize::{PoolOptions, Prompt, PromptOptions, SHORT_BYTES_MAX, TokenizeError, Tokenized};
use flash_indexer_registry::{Indexer, TokenizationError};
use flash_indexer_telemetry::metrics::Metrics;

/// Long texts for each worker of the pool that are tokenized in turns. Further ones wait for a permit.
const LONG_PER_WORKER: usize = 8;

/// Limits of the texts that wait to be tokenized, or are tokenized.
///
/// # Fairness
///
/// The texts of one client address may use at most as many bytes as are free in the queue, as its bodies may. The pool tokenizes a
/// limited number of long texts at a time: each needs a permit, and clients take turns for the permits. A text keeps its permit and
/// its bytes until the pool has finished with it, even if its client disconnects earlier.
#[derive(Debug)]
pub(crate) struct Texts {
    budget: Arc<BodyBudget>,
    permits: Arc<FairSemaphore>,
    metrics: Arc<Metrics>,
}

impl Texts {
    pub(crate) fn new(pool: &PoolOptions, metrics: &Arc<Metrics>) -> Self {
        let budget = BodyBudget::new(Bodies::Texts, Some(pool.queued_bytes_max), 0, metrics);
        let permits = FairSemaphore::new(pool.workers.max(1) * LONG_PER_WORKER, pool.queued_prompts_max.max(1));
        Self { budget, permits, metrics: Arc::clone(metrics) }
    }

    /// The tokens of a client's text or chat. A refusal is counted.
    pub(crate) async fn tokenize(
        &self,
        (indexer, model_name): (&Indexer, &str),
        client: Option<IpAddr>,
        prompt: Prompt,
        options: PromptOptions,
    ) -> Result<Tokenized, TokenizationError> {
        let bytes = prompt.bytes();
        let kind = prompt.kind();
        let mut text = self.budget.body(client);
        let refused = || {
            self.metrics.tokenized(kind, Err(TokenizeError::ClientShare.reason().as_str()));
            TokenizeError::ClientShare
        };
        text.add(bytes).map_err(|_| refused())?;
        let permit = match bytes > SHORT_BYTES_MAX {
            true => Some(self.permits.acquire(text.client()).await.map_err(|QueueFull| refused())?),
            false => None,
        };
        indexer.tokens(model_name, prompt, options, (text, permit)).await
    }

    /// Bytes of all texts.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.budget.bytes()
    }

    /// Number of long texts that have a permit, and of those that wait for one.
    #[cfg(test)]
    pub(crate) fn long(&self) -> (usize, usize) {
        self.permits.occupied()
    }
}
