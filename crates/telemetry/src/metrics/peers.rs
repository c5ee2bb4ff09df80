//! Counters of recovery from peers and of comparison with peers.

use super::declarations::{Declarations, NamedCounters};
use super::{LabelValue, Metrics};

#[derive(Debug)]
pub(super) struct PeerMetrics {
    recoveries: NamedCounters,
    checks: NamedCounters,
    repairs: NamedCounters,
}

const RECOVERIES: [LabelValue; 6] = [
    ("complete", "The state was imported."),
    ("unreachable", "The peer did not respond, or stopped."),
    ("refused", "The peer answered with an error or a redirect; it may be recovering itself."),
    ("protocol_error", "The program at the URL is not a Flash Indexer."),
    ("broken_dump", "The dump cannot be opened or read, or is cut off; its data was removed again."),
    ("panicked", "The recovery panicked."),
];
const CHECKS: [LabelValue; 7] = [
    ("equal", "Both hold the same blocks."),
    (
        "not_compared",
        "The replicas met at no message, one has received nothing, or the peer is less reliable and repairs itself.",
    ),
    ("other_epoch", "The replicas follow different epochs of the engine."),
    ("worse", "The peer's state is more reliable; the rank is imported from it."),
    ("drift", "They differ, and neither is `exact`."),
    ("dispute", "They differ, and both are `exact`; the rank is replayed from the engine if it can replay."),
    ("unreachable", "The peer did not respond."),
];
const REPAIRS: [LabelValue; 2] = [("complete", "The rank was replaced."), ("failed", "The rank was not replaced.")];

impl PeerMetrics {
    pub(super) fn declare(declarations: &mut Declarations) -> Self {
        let mut counters = |name, help, outcomes| declarations.named_counters(name, help, "outcome", outcomes);
        Self {
            recoveries: counters("recoveries", "Attempts to start from a peer or a dump, by outcome", &RECOVERIES),
            checks: counters("peer_checks", "Comparisons of a rank with the same rank of a peer, by outcome", &CHECKS),
            repairs: counters(
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
        self.peers.recoveries.inc(outcome);
    }

    /// Counts a comparison of a rank with the same rank of a peer.
    pub fn peer_check(&self, outcome: &'static str) {
        self.peers.checks.inc(outcome);
    }

    /// Counts a rebuild of an instance.
    pub fn peer_repair(&self, outcome: &'static str) {
        self.peers.repairs.inc(outcome);
    }
}
