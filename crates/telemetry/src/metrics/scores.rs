//! Counters of scores and predictions.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use super::{Metrics, registered};

#[derive(Debug)]
pub(super) struct ScoreMetrics {
    scores: Counter,
    scored_pods: Counter,
    scored_predicted_blocks: Counter,
    predictions: Counter,
}

impl ScoreMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut counter = |name: &str, help: &str| registered(registry, name, help, Counter::default());
        Self {
            scores: counter("scores", "Prompts scored"),
            scored_pods: counter("scored_pods", "Instances with a score above zero, summed over scored prompts"),
            scored_predicted_blocks: counter(
                "scored_predicted_blocks",
                "Predicted blocks counted in scores, summed over instances",
            ),
            predictions: counter("predictions", "Predictions recorded from routers"),
        }
    }
}

impl Metrics {
    /// Counts a scored prompt, the instances with a score, and the predicted blocks in their scores.
    pub fn scored(&self, pods: usize, predicted_blocks: u64) {
        self.scores.scores.inc();
        self.scores.scored_pods.inc_by(pods as u64);
        self.scores.scored_predicted_blocks.inc_by(predicted_blocks);
    }

    /// Counts a prediction that a router made.
    pub fn predicted(&self) {
        self.scores.predictions.inc();
    }
}
