//! Counters of discovery sources and of the registrations that discovery makes.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use flash_indexer_types::TargetState;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{LabelValue, LabelValues, Metrics, is_declared, registered};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PollLabels {
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

const OUTCOMES: [LabelValue; 2] =
    [("ok", "The source reported its engines."), ("failed", "The source failed; its last report stays in force.")];
const CHANGES: [LabelValue; 3] = [
    ("registered", "A rank was registered."),
    ("unregistered", "A rank was unregistered."),
    ("refused", "A registration failed; it is tried again every few seconds."),
];

/// Values of the labels of these metrics.
pub(super) fn label_values() -> Vec<LabelValues> {
    vec![
        LabelValues::of("discovery_looks_total", "outcome", &OUTCOMES),
        LabelValues::of("discovery_targets", "state", &TargetState::DESCRIPTIONS),
        LabelValues::of("discovery_changes_total", "change", &CHANGES),
    ]
}

#[derive(Debug)]
pub(super) struct DiscoveryMetrics {
    polls: Family<PollLabels, Counter>,
    targets: Family<Targets, Gauge>,
    changes: Family<Change, Counter>,
    last_success: Family<Source, Gauge<f64, AtomicU64>>,
}

impl DiscoveryMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Polls of a discovery source, by outcome";
        let polls = registered(registry, "discovery_looks", help, Family::default());
        let help = "Ranks that a discovery source names, by state";
        let targets = registered(registry, "discovery_targets", help, Family::default());
        let help = "Registration changes made by discovery";
        let changes = registered(registry, "discovery_changes", help, Family::default());
        let last_success: Family<Source, Gauge<f64, AtomicU64>> = Family::default();
        let help = "Unix time of the last successful poll of a discovery source";
        registry.register_with_unit("discovery_last_success_timestamp", help, Unit::Seconds, last_success.clone());
        Self { polls, targets, changes, last_success }
    }
}

impl Metrics {
    /// Counts a poll of a discovery source, by outcome.
    pub fn discovery_polled(&self, source: &str, outcome: &'static str) {
        debug_assert!(is_declared(&OUTCOMES, outcome));
        self.discovery.polls.get_or_create(&PollLabels { source: source.to_owned(), outcome }).inc();
    }

    /// Records the time of a source's last successful poll.
    pub fn discovery_succeeded(&self, source: &str, at: SystemTime) {
        let since_1970 = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let gauge = self.discovery.last_success.get_or_create(&Source { source: source.to_owned() });
        gauge.set(since_1970.as_secs_f64());
    }

    /// Counts a registration that discovery made, removed, or failed to make.
    pub fn discovery_change(&self, change: &'static str) {
        debug_assert!(is_declared(&CHANGES, change));
        self.discovery.changes.get_or_create(&Change { change }).inc();
    }

    /// Sets how many of a source's ranks are in each registration state.
    pub fn discovery_targets(&self, source: &str, counts: &BTreeMap<&'static str, usize>) {
        for (&state, &count) in counts {
            let gauge = self.discovery.targets.get_or_create(&Targets { source: source.to_owned(), state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
