//! Counters of snapshots on disk, and of the source of the index at the start.

use prometheus_client::metrics::gauge::Gauge;

use super::declarations::{Declarations, NamedCounters};
use super::{LabelValue, Metrics};

#[derive(Debug)]
pub(super) struct SnapshotMetrics {
    snapshots: NamedCounters,
    bytes: Gauge,
    recovered_from: NamedCounters,
}

const OUTCOMES: [LabelValue; 5] = [
    ("written", "A snapshot was written."),
    ("failed", "A snapshot was not written; previous snapshots are kept."),
    ("damaged", "A snapshot was skipped at the start: it was cut off or changed."),
    (
        "unreadable",
        "A snapshot was skipped at the start, and stays: it cannot be opened or read, or a newer program wrote it.",
    ),
    ("refused", "A snapshot was skipped at the start: its ranks contradict the registrations."),
];
const SOURCES: [LabelValue; 4] = [
    ("engines", "Neither a snapshot, a peer nor a dump could be used: the index began empty."),
    ("snapshot", "A snapshot of the state directory."),
    ("peer", "A peer."),
    ("dump", "The dump of `--load`."),
];

impl SnapshotMetrics {
    pub(super) fn declare(declarations: &mut Declarations) -> Self {
        let help =
            "Snapshots of the state directory that were written, failed to be written, or were skipped at the start";
        let snapshots = declarations.named_counters("snapshots", help, "outcome", &OUTCOMES);
        let help = "Starts, by the source from which the index was filled first";
        let recovered_from = declarations.named_counters("recovered_from", help, "source", &SOURCES);
        let bytes = declarations.add("snapshot_bytes", "Size of the last written snapshot", Gauge::default());
        Self { snapshots, bytes, recovered_from }
    }
}

impl Metrics {
    /// Counts a written snapshot, and records its size.
    pub fn snapshot_written(&self, bytes: u64) {
        self.snapshot_ended("written");
        self.snapshots.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts a snapshot: `failed` to be written, or `damaged`, `unreadable` or `refused` at the start.
    pub fn snapshot_ended(&self, outcome: &'static str) {
        self.snapshots.snapshots.inc(outcome);
    }

    /// Counts the source from which the index was filled at the start.
    pub fn recovered_from(&self, source: &'static str) {
        self.snapshots.recovered_from.inc(source);
    }
}
