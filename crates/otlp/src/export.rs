//! The thread that sends batches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, select};
use flash_indexer_telemetry::metrics::{Metrics, SpanOutcome};
use opentelemetry_sdk::trace::SpanData;
use tracing::{debug, info, warn};

use crate::collector::{Collector, Delivery};

/// Spans of a batch.
const BATCH_SPANS_MAX: usize = 512;
/// Longest time for which the first span of a batch waits for others.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Pauses between attempts double from the first to the last. A collector may request a pause of up to the last one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// The export of the spans in a queue.
pub(crate) struct Export {
    pub(crate) spans: Receiver<SpanData>,
    /// Receives the time by which the export ends. Without a sender it ends at once.
    pub(crate) stop: Receiver<Instant>,
    pub(crate) collector: Collector,
    pub(crate) metrics: Arc<Metrics>,
    /// The end, once the export is stopped.
    pub(crate) end: Option<Instant>,
    /// Spans that were lost before the current outage; none while the collector accepts every batch completely.
    pub(crate) outage: Option<u64>,
}

impl Export {
    /// Sends batches until the export is stopped, and then the rest of the queue.
    pub(crate) fn run(mut self) {
        let mut lost = 0;
        while self.end.is_none() {
            let batch = self.collect();
            lost = self.deliver(batch);
        }
        loop {
            let batch: Vec<SpanData> = self.spans.try_iter().take(BATCH_SPANS_MAX).collect();
            match batch.len() {
                0 => break,
                // One failure is enough: the others would fail as well.
                spans if lost > 0 => lost += self.drop_spans(spans),
                _ => lost += self.deliver(batch),
            }
        }
        if lost > 0 {
            warn!(endpoint = %self.collector.endpoint(), spans = lost, "failed to export the last spans; they are dropped");
        }
    }

    /// The next batch: full, or as large as it has become within the delay. It is shorter when the export is stopped.
    fn collect(&mut self) -> Vec<SpanData> {
        let mut batch = Vec::new();
        let mut delay = crossbeam_channel::never();
        while batch.len() < BATCH_SPANS_MAX {
            select! {
                recv(self.spans) -> span => match span {
                    Ok(span) => {
                        if batch.is_empty() {
                            delay = crossbeam_channel::after(BATCH_DELAY);
                        }
                        batch.push(span);
                    }
                    // No tracer is left.
                    Err(_) => {
                        self.end = Some(Instant::now());
                        break;
                    }
                },
                recv(self.stop) -> end => {
                    self.end = Some(end.unwrap_or_else(|_| Instant::now()));
                    break;
                }
                recv(delay) -> _ => break,
            }
        }
        batch
    }

    /// Sends a batch until the collector accepts it, or once when the export is stopped. Returns the number of spans that were lost to
    /// the stop.
    fn deliver(&mut self, batch: Vec<SpanData>) -> u64 {
        let spans = batch.len();
        if spans == 0 {
            return 0;
        }
        let body = self.collector.encode(batch);
        let mut pause = FIRST_PAUSE;
        loop {
            let left = self.end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return self.drop_spans(spans);
            }
            match self.collector.send(&body, left) {
                Delivery::Accepted { rejected, cause } => {
                    let rejected = rejected.min(spans as u64);
                    if rejected > 0 {
                        self.log_failure(&cause)
                    } else {
                        self.log_success()
                    }
                    self.metrics.spans_ended(SpanOutcome::Exported, spans as u64 - rejected);
                    self.metrics.spans_ended(SpanOutcome::Rejected, rejected);
                    return 0;
                }
                Delivery::Refused { cause } => {
                    self.log_failure(&cause);
                    self.metrics.export_failed();
                    self.metrics.spans_ended(SpanOutcome::Rejected, spans as u64);
                    return 0;
                }
                Delivery::Failed { cause, retry_after } => {
                    self.metrics.export_failed();
                    self.log_failure(&cause);
                    if self.end.is_some() {
                        return self.drop_spans(spans);
                    }
                    self.wait(retry_after.unwrap_or(pause).clamp(pause, LAST_PAUSE));
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
        }
    }

    /// Waits for a time, or until the export is stopped.
    fn wait(&mut self, pause: Duration) {
        match self.stop.recv_timeout(pause) {
            Ok(end) => self.end = Some(end),
            Err(RecvTimeoutError::Disconnected) => self.end = Some(Instant::now()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }

    fn drop_spans(&self, spans: usize) -> u64 {
        self.metrics.spans_ended(SpanOutcome::Dropped, spans as u64);
        spans as u64
    }

    /// Logs the first failure of an outage.
    fn log_failure(&mut self, cause: &str) {
        let endpoint = self.collector.endpoint();
        match self.outage {
            None => {
                warn!(
                    %endpoint,
                    error = cause,
                    "failed to export spans; retrying, and spans beyond the queue are dropped; check the collector and --otlp-endpoint"
                );
                self.outage = Some(self.lost());
            }
            Some(_) => debug!(%endpoint, error = cause, "failed to export spans again"),
        }
    }

    /// Logs the end of an outage.
    fn log_success(&mut self) {
        if let Some(before) = self.outage.take() {
            let lost = self.lost() - before;
            info!(endpoint = %self.collector.endpoint(), lost, "the collector accepts spans again");
        }
    }

    /// Spans that no collector has received or will receive.
    fn lost(&self) -> u64 {
        self.metrics.spans_ended_count(SpanOutcome::Rejected) + self.metrics.spans_ended_count(SpanOutcome::Dropped)
    }
}
