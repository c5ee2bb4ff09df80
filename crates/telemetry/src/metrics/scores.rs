//! Counters of scores, predictions and picks.

use prometheus_client::metrics::counter::Counter;

use super::Metrics;
use super::declarations::Declarations;

flash_indexer_types::named_enum! {
    /// Inputs of a pick of the endpoint picker.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum PickOutcome {
        /// The prompt and the load.
        Scored = "scored",
        /// The load alone: the request has no body, or its path is of no endpoint with a prompt.
        NoPrompt = "no_prompt",
        /// The load alone: the gateway has not sent the body yet. A choice by the body may follow.
        BodyNotSent = "body_not_sent",
        /// The load alone: the body has more than `--body-bytes-max` bytes.
        TooLarge = "too_large",
        /// The load alone: the body did not arrive in time.
        TooSlow = "too_slow",
        /// The load alone: the body is no request that an engine answers.
        InvalidBody = "invalid_body",
        /// The load alone: the model is not registered.
        UnknownModel = "unknown_model",
        /// The load alone: the prompt could not be tokenized or looked up.
        Failed = "failed",
        /// No instance: none is ready.
        NotReady = "not_ready",
        /// No instance: each has `--endpoint-picker-requests-max` requests in flight.
        Full = "full",
    }
}

#[derive(Debug)]
pub(super) struct ScoreMetrics {
    scores: Counter,
    scored_instances: Counter,
    scored_predicted_blocks: Counter,
    predictions: Counter,
    endpoint_picks: [Counter; PickOutcome::ALL.len()],
}

impl ScoreMetrics {
    pub(super) fn declare(declarations: &mut Declarations) -> Self {
        let help = "Endpoint picks, by outcome";
        let endpoint_picks = declarations.counters("endpoint_picks", help, "outcome", &PickOutcome::DESCRIPTIONS);
        let help = "Instances with a score above zero, summed over scored prompts";
        let scored_instances = declarations.counter("scored_instances", help);
        declarations.add("scored_pods", "Alias of scored_instances until 1.0", scored_instances.clone());
        let mut counter = |name: &str, help: &str| declarations.counter(name, help);
        Self {
            scores: counter("scores", "Prompts scored over HTTP or gRPC"),
            scored_instances,
            scored_predicted_blocks: counter(
                "scored_predicted_blocks",
                "Predicted blocks counted in scores, summed over instances",
            ),
            predictions: counter("predictions", "Predictions recorded from routers"),
            endpoint_picks,
        }
    }
}

impl Metrics {
    /// Counts a scored prompt, the instances with a score, and the predicted blocks in their scores.
    pub fn scored(&self, pods: usize, predicted_blocks: u64) {
        self.scores.scores.inc();
        self.scores.scored_instances.inc_by(pods as u64);
        self.scores.scored_predicted_blocks.inc_by(predicted_blocks);
    }

    /// Counts a choice of the endpoint picker.
    pub fn endpoint_picked(&self, outcome: PickOutcome) {
        self.scores.endpoint_picks[outcome as usize].inc();
    }

    /// Counts a prediction that a router made.
    pub fn predicted(&self) {
        self.scores.predictions.inc();
    }
}
