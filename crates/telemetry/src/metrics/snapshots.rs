//! Counters of snapshots on disk, and of the source of the index at the start.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{LabelValue, LabelValues, Metrics, is_declared, registered};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Source {
    source: &'static str,
}

#[derive(Debug)]
pub(super) struct SnapshotMetrics {
    snapshots: Family<Outcome, Counter>,
    bytes: Gauge,
    recovered_from: Family<Source, Counter>,
}

const OUTCOMES: [LabelValue; 4] = [
    ("written", "A snapshot was written."),
    ("failed", "A snapshot was not written; the former ones stay."),
    ("damaged", "A snapshot was skipped at the start: it was cut off or changed."),
    ("refused", "A snapshot was skipped at the start: its ranks contradict the registrations."),
];
const SOURCES: [LabelValue; 4] = [
    ("engines", "Neither a snapshot, a peer nor a dump could be used: the index began empty."),
    ("snapshot", "A snapshot of the state directory."),
    ("peer", "A peer."),
    ("dump", "The dump of `--load`."),
];

/// Values of the labels of these metrics.
pub(super) fn label_values() -> Vec<LabelValues> {
    vec![
        LabelValues::of("snapshots_total", "outcome", &OUTCOMES),
        LabelValues::of("recovered_from_total", "source", &SOURCES),
    ]
}

impl SnapshotMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help =
            "Snapshots of the state directory that were written, failed to be written, or were skipped at the start";
        let snapshots: Family<Outcome, Counter> = registered(registry, "snapshots", help, Family::default());
        let help = "Starts, by the source from which the index was filled first";
        let recovered_from: Family<Source, Counter> = registered(registry, "recovered_from", help, Family::default());
        // Exported at zero, so that the first increment is visible as a rise.
        OUTCOMES.iter().for_each(|(outcome, _)| drop(snapshots.get_or_create(&Outcome { outcome })));
        SOURCES.iter().for_each(|(source, _)| drop(recovered_from.get_or_create(&Source { source })));
        let bytes = registered(registry, "snapshot_bytes", "Size of the last written snapshot", Gauge::default());
        Self { snapshots, bytes, recovered_from }
    }
}

impl Metrics {
    /// Counts a written snapshot, and records its size.
    pub fn snapshot_written(&self, bytes: u64) {
        self.snapshot_ended("written");
        self.snapshots.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts a snapshot: `failed` to be written, `damaged` or `refused` at the start.
    pub fn snapshot_ended(&self, outcome: &'static str) {
        debug_assert!(is_declared(&OUTCOMES, outcome));
        self.snapshots.snapshots.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts the source from which the index was filled at the start.
    pub fn recovered_from(&self, source: &'static str) {
        debug_assert!(is_declared(&SOURCES, source));
        self.snapshots.recovered_from.get_or_create(&Source { source }).inc();
    }
}
