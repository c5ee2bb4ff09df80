//! Scores and predictions.

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
            scores: counter("scores", "Prompts that pods were scored for"),
            scored_pods: counter(
                "scored_pods",
                "Pods that held or were predicted to hold something of a scored prompt",
            ),
            scored_predicted_blocks: counter(
                "scored_predicted_blocks",
                "Blocks that counted in scores because a router had said where it sent them, summed over pods",
            ),
            predictions: counter("predictions", "Prompts that routers said they sent to a pod"),
        }
    }
}

impl Metrics {
    /// So many pods had a score, with so many predicted blocks in them.
    pub fn scored(&self, pods: usize, predicted_blocks: u64) {
        self.scores.scores.inc();
        self.scores.scored_pods.inc_by(pods as u64);
        self.scores.scored_predicted_blocks.inc_by(predicted_blocks);
    }

    /// A prediction was recorded.
    pub fn predicted(&self) {
        self.scores.predictions.inc();
    }
}
