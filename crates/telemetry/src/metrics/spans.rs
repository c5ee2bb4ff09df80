//! Counters of the spans of traced requests.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{LabelValues, Metrics, registered, resolved};

flash_indexer_types::named_enum! {
    /// Outcome of a span.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SpanOutcome {
        /// The collector accepted it.
        Exported = "exported",
        /// The collector refused it.
        Rejected = "rejected",
        /// The queue was full, or the service stopped before the collector had it.
        Dropped = "dropped",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug)]
pub(super) struct SpanMetrics {
    ended: [Counter; SpanOutcome::ALL.len()],
    export_failures: Counter,
}

impl SpanMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Spans of traced requests, by outcome";
        let family = registered(registry, "spans", help, Family::<Outcome, Counter>::default());
        let ended = resolved(&family, SpanOutcome::ALL, |outcome| Outcome { outcome: outcome.as_str() });
        let help = "Batches of spans that the collector did not receive, or refused";
        let export_failures = registered(registry, "span_export_failures", help, Counter::default());
        Self { ended, export_failures }
    }
}

/// Values of the label of this metric.
pub(super) fn label_values() -> LabelValues {
    LabelValues::of("spans_total", "outcome", &SpanOutcome::DESCRIPTIONS)
}

impl Metrics {
    /// Counts spans by outcome.
    pub fn spans_ended(&self, outcome: SpanOutcome, spans: u64) {
        self.spans.ended[outcome as usize].inc_by(spans);
    }

    /// Counts a request with spans that the collector did not receive or refused.
    pub fn export_failed(&self) {
        self.spans.export_failures.inc();
    }

    /// Number of spans of which this has become.
    #[must_use]
    pub fn spans_ended_count(&self, outcome: SpanOutcome) -> u64 {
        self.spans.ended[outcome as usize].get()
    }
}
