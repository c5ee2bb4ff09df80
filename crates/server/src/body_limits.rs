//! Limits of bodies and texts, shared by HTTP and gRPC.

use std::io;
use std::sync::Arc;

use flash_indexer_admission::{Bodies, BodyBudget, LargeRequests};
use flash_indexer_prompt::tokenize::PoolOptions;
use flash_indexer_telemetry::metrics::Metrics;

use crate::texts::Texts;

/// Limits of bodies and texts.
#[derive(Debug, Clone)]
pub(crate) struct BodyLimits {
    /// Largest body of a request, in bytes.
    pub(crate) bytes_max: usize,
    pub(crate) budget: Arc<BodyBudget>,
    pub(crate) answers: Arc<BodyBudget>,
    pub(crate) large_requests: Arc<LargeRequests>,
    pub(crate) texts: Arc<Texts>,
}

impl BodyLimits {
    /// Limits of one body and of all bodies together, in bytes. All answers together have the same limit.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    pub(crate) fn new(
        (bytes_max, total_max): (usize, Option<usize>),
        pool: &PoolOptions,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Self> {
        let budget = BodyBudget::new(Bodies::Requests, total_max, bytes_max, metrics);
        let answers = BodyBudget::new(Bodies::Answers, total_max, bytes_max, metrics);
        Ok(Self {
            bytes_max,
            budget,
            answers,
            large_requests: Arc::new(LargeRequests::start(metrics)?),
            texts: Arc::new(Texts::new(pool, metrics)),
        })
    }

    /// The same limits, with separate budgets of this number of bytes each.
    pub(crate) fn with_total(&self, total_max: usize) -> Self {
        let own = |shared: &BodyBudget| shared.with_bytes(total_max);
        Self { budget: own(&self.budget), answers: own(&self.answers), ..self.clone() }
    }
}
