//! Other servers of the same fleet: starting from them, and comparing with them.

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
                // Shown from the start, so that the first one is seen as a rise.
                drop(family.get_or_create(&Outcome { outcome }));
            }
            family
        };
        Self {
            recoveries: family("recoveries", "Attempts to start from a peer, by what became of them", &RECOVERIES),
            checks: family("peer_checks", "Ranks compared with a peer's, by what came out", &CHECKS),
            repairs: family(
                "peer_repairs",
                "Ranks taken over anew from a peer or the engine, by what became of it",
                &REPAIRS,
            ),
        }
    }
}

impl Metrics {
    /// An attempt to start from a peer has ended.
    pub fn recovery(&self, outcome: &'static str) {
        self.peers.recoveries.get_or_create(&Outcome { outcome }).inc();
    }

    /// A rank was compared with a peer's.
    pub fn peer_check(&self, outcome: &'static str) {
        self.peers.checks.get_or_create(&Outcome { outcome }).inc();
    }

    /// A rank was taken over anew, or could not be.
    pub fn peer_repair(&self, outcome: &'static str) {
        self.peers.repairs.get_or_create(&Outcome { outcome }).inc();
    }
}
