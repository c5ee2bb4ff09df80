//! Counters of recovery from peers and of comparison with peers.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{Metrics, registered};

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

const RECOVERIES: [&str; 6] = ["complete", "unreachable", "refused", "strange", "broken_dump", "panicked"];
const CHECKS: [&str; 7] = ["equal", "not_compared", "other_life", "worse", "drift", "dispute", "unreachable"];
const REPAIRS: [&str; 2] = ["complete", "failed"];

impl PeerMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut family = |name, help, outcomes: &[&'static str]| {
            let family: Family<Outcome, Counter> = registered(registry, name, help, Family::default());
            for &outcome in outcomes {
                // Exported at zero, so that the first increment is visible as a rise.
                drop(family.get_or_create(&Outcome { outcome }));
            }
            family
        };
        Self {
            recoveries: family("recoveries", "Attempts to recover from a peer, by outcome", &RECOVERIES),
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
        self.peers.recoveries.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a comparison of a rank with the same rank of a peer.
    pub fn peer_check(&self, outcome: &'static str) {
        self.peers.checks.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a rebuild of an instance.
    pub fn peer_repair(&self, outcome: &'static str) {
        self.peers.repairs.get_or_create(&Outcome { outcome }).inc();
    }
}
