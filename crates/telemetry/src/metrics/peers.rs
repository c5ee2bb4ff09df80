//! Counters of recovery from peers and of comparison with peers.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{LabelValue, LabelValues, Metrics, is_declared, registered};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug)]
pub(super) struct PeerMetrics {
    recoveries: Family<Outcome, Counter>,
    checks: Family<Outcome, Counter>,
    repairs: Family<Outcome, Counter>,
}

const RECOVERIES: [LabelValue; 6] = [
    ("complete", "The state was imported."),
    ("unreachable", "The peer did not respond, or stopped."),
    ("refused", "The peer answered with an error or a redirect; it may be recovering itself."),
    ("strange", "The program at the URL is not a Flash Indexer."),
    ("broken_dump", "The dump cannot be opened or read, or is cut off; its data was removed again."),
    ("panicked", "The recovery panicked."),
];
const CHECKS: [LabelValue; 7] = [
    ("equal", "Both hold the same blocks."),
    (
        "not_compared",
        "The replicas met at no message, one has received nothing, or the peer is less reliable and repairs itself.",
    ),
    ("other_life", "The replicas follow different epochs of the engine."),
    ("worse", "The peer's state is more reliable; the rank is imported from it."),
    ("drift", "They differ, and neither is `exact`."),
    ("dispute", "They differ, and both are `exact`; the rank is replayed from the engine if it can replay."),
    ("unreachable", "The peer did not respond."),
];
const REPAIRS: [LabelValue; 2] = [("complete", "The rank was replaced."), ("failed", "The rank was not replaced.")];

/// Values of the labels of these metrics.
pub(super) fn label_values() -> Vec<LabelValues> {
    vec![
        LabelValues::of("recoveries_total", "outcome", &RECOVERIES),
        LabelValues::of("peer_checks_total", "outcome", &CHECKS),
        LabelValues::of("peer_repairs_total", "outcome", &REPAIRS),
    ]
}

impl PeerMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut family = |name, help, outcomes: &[LabelValue]| {
            let family: Family<Outcome, Counter> = registered(registry, name, help, Family::default());
            for &(outcome, _) in outcomes {
                // Exported at zero, so that the first increment is visible as a rise.
                drop(family.get_or_create(&Outcome { outcome }));
            }
            family
        };
        Self {
            recoveries: family("recoveries", "Attempts to start from a peer or a dump, by outcome", &RECOVERIES),
            checks: family("peer_checks", "Comparisons of a rank with the same rank of a peer, by outcome", &CHECKS),
            repairs: family(
                "peer_repairs",
                "Instances rebuilt from a peer's dump or the engine's replay, by outcome",
                &REPAIRS,
            ),
        }
    }
}

impl Metrics {
    /// Counts an attempt to recover from a peer.
    pub fn recovery_ended(&self, outcome: &'static str) {
        debug_assert!(is_declared(&RECOVERIES, outcome));
        self.peers.recoveries.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a comparison of a rank with the same rank of a peer.
    pub fn peer_check(&self, outcome: &'static str) {
        debug_assert!(is_declared(&CHECKS, outcome));
        self.peers.checks.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a rebuild of an instance.
    pub fn peer_repair(&self, outcome: &'static str) {
        debug_assert!(is_declared(&REPAIRS, outcome));
        self.peers.repairs.get_or_create(&Outcome { outcome }).inc();
    }
}
