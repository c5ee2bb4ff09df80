//! Sources of discovery, and what became of the engines that they name.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Metrics, registered};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LookupLabels {
    source: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Source {
    source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Targets {
    source: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Change {
    change: &'static str,
}

#[derive(Debug)]
pub(super) struct DiscoveryMetrics {
    looks: Family<LookupLabels, Counter>,
    targets: Family<Targets, Gauge>,
    changes: Family<Change, Counter>,
    last_success: Family<Source, Gauge<f64, AtomicU64>>,
}

impl DiscoveryMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Reports of sources of discovery, by whether they could tell what they name";
        let looks = registered(registry, "discovery_looks", help, Family::default());
        let help = "Ranks that a source names, by what becomes of them";
        let targets = registered(registry, "discovery_targets", help, Family::default());
        let help = "Registrations that discovery has made, ended, or could not make";
        let changes = registered(registry, "discovery_changes", help, Family::default());
        let last_success: Family<Source, Gauge<f64, AtomicU64>> = Family::default();
        let help = "When a source last told what it names, in Unix time";
        registry.register_with_unit("discovery_last_success_timestamp", help, Unit::Seconds, last_success.clone());
        Self { looks, targets, changes, last_success }
    }
}

impl Metrics {
    /// A source has told what it names, or could not.
    pub fn discovery_look(&self, source: &str, outcome: &'static str) {
        self.discovery.looks.get_or_create(&LookupLabels { source: source.to_owned(), outcome }).inc();
    }

    /// A source has told what it names, at this time.
    pub fn discovery_answered(&self, source: &str, at: SystemTime) {
        let since_1970 = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let gauge = self.discovery.last_success.get_or_create(&Source { source: source.to_owned() });
        gauge.set(since_1970.as_secs_f64());
    }

    /// Discovery has changed what is registered, or could not.
    pub fn discovery_change(&self, change: &'static str) {
        self.discovery.changes.get_or_create(&Change { change }).inc();
    }

    /// What has become of the ranks that a source names.
    pub fn discovery_targets(&self, source: &str, counts: &BTreeMap<&'static str, usize>) {
        for (&state, &count) in counts {
            let gauge = self.discovery.targets.get_or_create(&Targets { source: source.to_owned(), state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
