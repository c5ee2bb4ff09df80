//! Counters and gauges in Prometheus' text format.

use std::sync::atomic::AtomicU64;

use flash_indexer_core::Applied;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    endpoint: &'static str,
    status: u16,
}

/// Everything that the service counts.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    messages: Counter,
    missed_messages: Counter,
    restarts: Counter,
    events: Counter,
    blocks: Family<Outcome, Counter>,
    rejected: Family<Reason, Counter>,
    connections_full: Counter,
    requests: Family<Request, Counter>,
    models: Gauge<i64>,
    workers: Gauge<i64>,
    held_blocks: Gauge<u64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("flash_indexer");
        macro_rules! metric {
            ($name:literal, $help:literal) => {{
                let metric = Default::default();
                registry.register($name, $help, Clone::clone(&metric));
                metric
            }};
        }
        let messages: Counter = metric!("messages", "Messages received from engines");
        let missed_messages: Counter = metric!("missed_messages", "Messages that engines published and we never saw");
        let restarts: Counter = metric!("engine_restarts", "Engines that started again");
        let events: Counter = metric!("events", "Events applied");
        let blocks: Family<Outcome, Counter> = metric!("blocks", "Blocks in applied events by what became of them");
        let rejected: Family<Reason, Counter> = metric!("rejected", "Messages and events that could not be used");
        let connections_full: Counter =
            metric!("connections_full", "Times that new connections had to wait because too many were open");
        let requests: Family<Request, Counter> = metric!("requests", "HTTP requests");
        let models: Gauge<i64> = metric!("models", "Pairs of model and tenant with an index");
        let workers: Gauge<i64> = metric!("workers", "Registered instances");
        let held_blocks: Gauge<u64, AtomicU64> = metric!("held_blocks", "Blocks held by all ranks");
        Self {
            registry,
            messages,
            missed_messages,
            restarts,
            events,
            blocks,
            rejected,
            connections_full,
            requests,
            models,
            workers,
            held_blocks,
        }
    }
}

impl Metrics {
    pub(crate) fn message(&self) {
        self.messages.inc();
    }

    pub(crate) fn missed(&self, messages: u64) {
        self.missed_messages.inc_by(messages);
    }

    pub(crate) fn restart(&self) {
        self.restarts.inc();
    }

    pub(crate) fn applied(&self, applied: &Applied) {
        self.events.inc();
        let results = [
            ("stored", applied.stored),
            ("duplicate", applied.duplicate),
            ("waiting", applied.waiting),
            ("moved", applied.moved),
            ("refused", applied.refused),
            ("removed", applied.removed),
            ("unknown", applied.unknown),
        ];
        for (result, blocks) in results {
            if blocks > 0 {
                self.blocks.get_or_create(&Outcome { result }).inc_by(blocks);
            }
        }
    }

    pub(crate) fn rejected(&self, reason: &'static str) {
        self.rejected.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn connections_full(&self) {
        self.connections_full.inc();
    }

    pub(crate) fn request(&self, endpoint: &'static str, status: u16) {
        self.requests.get_or_create(&Request { endpoint, status }).inc();
    }

    /// Events applied since the start.
    pub(crate) fn events_applied(&self) -> u64 {
        self.events.get()
    }

    /// The text of all metrics, with gauges as given.
    pub(crate) fn encode(&self, models: usize, workers: usize, held_blocks: usize) -> String {
        self.models.set(models as i64);
        self.workers.set(workers as i64);
        self.held_blocks.set(held_blocks as u64);
        let mut out = String::new();
        text::encode(&mut out, &self.registry).expect("writing to a String cannot fail");
        out
    }
}
