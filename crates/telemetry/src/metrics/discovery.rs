//! Counters of discovery sources and of the registrations that discovery makes.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use flash_indexer_types::TargetState;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Unit;

use super::declarations::{Declarations, NamedCounters, is_declared};
use super::{LabelValue, Metrics};

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

const OUTCOMES: [LabelValue; 2] =
    [("ok", "The source reported its engines."), ("failed", "The source failed; its last report stays in force.")];
const CHANGES: [LabelValue; 3] = [
    ("registered", "A rank was registered."),
    ("unregistered", "A rank was unregistered."),
    ("refused", "A registration failed; it is tried again every few seconds."),
];

#[derive(Debug)]
pub(super) struct DiscoveryMetrics {
    polls: Family<PollLabels, Counter>,
    targets: Family<Targets, Gauge>,
    changes: NamedCounters,
    last_success: Family<Source, Gauge<f64, AtomicU64>>,
}

impl DiscoveryMetrics {
    pub(super) fn declare(declarations: &mut Declarations) -> Self {
        let help = "Polls of a discovery source, by outcome";
        let polls: Family<PollLabels, Counter> = declarations.add("discovery_polls", help, Family::default());
        declarations.add("discovery_looks", "Alias of discovery_polls until 1.0", polls.clone());
        declarations.describe("discovery_polls_total", "outcome", &OUTCOMES);
        let help = "Ranks that a discovery source names, by state";
        let targets = declarations.add("discovery_targets", help, Family::default());
        declarations.describe("discovery_targets", "state", &TargetState::DESCRIPTIONS);
        let help = "Registration changes made by discovery";
        let changes = declarations.counters_on_demand("discovery_changes", help, "change", &CHANGES);
        let help = "Unix time of the last successful poll of a discovery source";
        let last_success =
            declarations.add_with_unit("discovery_last_success_timestamp", help, Unit::Seconds, Family::default());
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
        self.discovery.changes.inc(change);
    }

    /// Sets how many of a source's ranks are in each registration state.
    pub fn discovery_targets(&self, source: &str, counts: &BTreeMap<&'static str, usize>) {
        for (&state, &count) in counts {
            let gauge = self.discovery.targets.get_or_create(&Targets { source: source.to_owned(), state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
