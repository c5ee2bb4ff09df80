//! Counters of the spans of traced requests.

use prometheus_client::metrics::counter::Counter;

use super::Metrics;
use super::declarations::Declarations;

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

#[derive(Debug)]
pub(super) struct SpanMetrics {
    ended: [Counter; SpanOutcome::ALL.len()],
    export_failures: Counter,
}

impl SpanMetrics {
    pub(super) fn declare(declarations: &mut Declarations) -> Self {
        let help = "Spans of traced requests, by outcome";
        let ended = declarations.counters("spans", help, "outcome", &SpanOutcome::DESCRIPTIONS);
        let help = "Batches of spans that the collector did not receive, or refused";
        let export_failures = declarations.counter("span_export_failures", help);
        Self { ended, export_failures }
    }
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

    /// Number of spans with this outcome.
    #[must_use]
    pub fn spans_ended_count(&self, outcome: SpanOutcome) -> u64 {
        self.spans.ended[outcome as usize].get()
    }
}
