//! Counters of snapshots on disk, and of the source of the index at the start.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Metrics, registered};

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

const OUTCOMES: [&str; 4] = ["written", "failed", "damaged", "refused"];
const SOURCES: [&str; 4] = ["engines", "snapshot", "peer", "dump"];

impl SnapshotMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help =
            "Snapshots of the state directory that were written, failed to be written, or were skipped at the start";
        let snapshots: Family<Outcome, Counter> = registered(registry, "snapshots", help, Family::default());
        let help = "Starts, by the source from which the index was filled first";
        let recovered_from: Family<Source, Counter> = registered(registry, "recovered_from", help, Family::default());
        // Exported at zero, so that the first increment is visible as a rise.
        OUTCOMES.iter().for_each(|outcome| drop(snapshots.get_or_create(&Outcome { outcome })));
        SOURCES.iter().for_each(|source| drop(recovered_from.get_or_create(&Source { source })));
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
        self.snapshots.snapshots.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts the source from which the index was filled at the start.
    pub fn recovered_from(&self, source: &'static str) {
        self.snapshots.recovered_from.get_or_create(&Source { source }).inc();
    }
}
