//! The queue of ended spans.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use flash_indexer_telemetry::metrics::{Limit, Metrics, SpanOutcome};
use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};

/// The end of the queue where spans enter, on the thread of their request. It never waits.
#[derive(Debug)]
pub(crate) struct SpanQueue {
    spans: Sender<SpanData>,
    metrics: Arc<Metrics>,
}

impl SpanQueue {
    /// A queue of at most this number of spans.
    pub(crate) fn new(spans_max: usize, metrics: &Arc<Metrics>) -> (Self, Receiver<SpanData>) {
        let (spans, receiver) = bounded(spans_max.max(1));
        (Self { spans, metrics: Arc::clone(metrics) }, receiver)
    }
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        let Err(refused) = self.spans.try_send(span) else { return };
        if refused.is_full() {
            self.metrics.limit_reached(Limit::QueuedSpans);
        }
        self.metrics.spans_ended(SpanOutcome::Dropped, 1);
    }

    /// [`Exporter::stop`](super::Exporter::stop) flushes the queue.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}
