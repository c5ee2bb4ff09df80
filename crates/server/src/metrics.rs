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
    lost_messages: Counter,
    replayed_messages: Counter,
    gaps: Counter,
    replays: Family<Outcome, Counter>,
    listener_restarts: Counter,
    writer_full: Counter,
    decoder_queue_messages: Gauge<i64>,
    decoder_queue_bytes: Gauge<i64>,
    restarts: Counter,
    events: Counter,
    blocks: Family<Outcome, Counter>,
    rejected: Family<Reason, Counter>,
    connections_full: Counter,
    recoveries: Family<Outcome, Counter>,
    peer_checks: Family<Outcome, Counter>,
    peer_repairs: Family<Outcome, Counter>,
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
        let missed_messages: Counter = metric!("missed_messages", "Messages that were missed when they were published");
        let lost_messages: Counter = metric!("lost_messages", "Missed messages that could not be had any more");
        let replayed_messages: Counter = metric!("replayed_messages", "Messages that engines replayed");
        let gaps: Counter = metric!("gaps", "Times that live messages did not follow each other");
        let replays: Family<Outcome, Counter> = metric!("replays", "Repairs of streams by how they ended");
        let listener_restarts: Counter = metric!("listener_restarts", "Listeners that failed and started anew");
        let writer_full: Counter = metric!("writer_full", "Times that decoders waited for an index writer");
        let decoder_queue_messages: Gauge<i64> = metric!("decoder_queue_messages", "Messages that wait to be decoded");
        let decoder_queue_bytes: Gauge<i64> =
            metric!("decoder_queue_bytes", "Bytes of messages that wait to be decoded");
        let restarts: Counter = metric!("engine_restarts", "Engines that started again");
        let events: Counter = metric!("events", "Events applied");
        let blocks: Family<Outcome, Counter> = metric!("blocks", "Blocks in applied events by what became of them");
        let rejected: Family<Reason, Counter> = metric!("rejected", "Messages and events that could not be used");
        let connections_full: Counter =
            metric!("connections_full", "Times that new connections had to wait because too many were open");
        let recoveries = metric!("recoveries", "Attempts to start from a peer, by what became of them");
        let peer_checks = metric!("peer_checks", "Ranks compared with a peer's, by what came out");
        let peer_repairs =
            metric!("peer_repairs", "Ranks taken over anew from a peer or the engine, by what became of it");
        let requests: Family<Request, Counter> = metric!("requests", "HTTP requests");
        let models: Gauge<i64> = metric!("models", "Pairs of model and tenant with an index");
        let workers: Gauge<i64> = metric!("workers", "Registered instances");
        let held_blocks: Gauge<u64, AtomicU64> = metric!("held_blocks", "Blocks held by all ranks");
        Self {
            registry,
            messages,
            missed_messages,
            lost_messages,
            replayed_messages,
            gaps,
            replays,
            listener_restarts,
            writer_full,
            decoder_queue_messages,
            decoder_queue_bytes,
            restarts,
            events,
            blocks,
            rejected,
            connections_full,
            recoveries,
            peer_checks,
            peer_repairs,
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

    /// Live messages did not follow each other.
    pub(crate) fn gap(&self, missed: u64) {
        self.gaps.inc();
        self.missed_messages.inc_by(missed);
    }

    pub(crate) fn lost(&self, messages: u64) {
        self.lost_messages.inc_by(messages);
    }

    pub(crate) fn replayed(&self) {
        self.replayed_messages.inc();
    }

    pub(crate) fn replay(&self, result: &'static str) {
        self.replays.get_or_create(&Outcome { result }).inc();
    }

    pub(crate) fn listener_restart(&self) {
        self.listener_restarts.inc();
    }

    pub(crate) fn writer_full(&self) {
        self.writer_full.inc();
    }

    /// More or fewer messages wait to be decoded.
    pub(crate) fn decoder_queue(&self, messages: i64, bytes: i64) {
        self.decoder_queue_messages.inc_by(messages);
        self.decoder_queue_bytes.inc_by(bytes);
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

    /// An attempt to start from a peer has ended.
    pub(crate) fn recovery(&self, result: &'static str) {
        self.recoveries.get_or_create(&Outcome { result }).inc();
    }

    /// A rank was compared with a peer's.
    pub(crate) fn peer_check(&self, result: &'static str) {
        self.peer_checks.get_or_create(&Outcome { result }).inc();
    }

    /// A rank was taken over anew, or could not be.
    pub(crate) fn peer_repair(&self, result: &'static str) {
        self.peer_repairs.get_or_create(&Outcome { result }).inc();
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
