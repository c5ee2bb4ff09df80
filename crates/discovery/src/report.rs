//! Reports of sources, on their way to the runner.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use flash_indexer_types::Registration;
use flash_indexer_types::names::shorten;
use parking_lot::Mutex;

use super::reconcile::Targets;

/// Limit of the ranks of one source. A source with more ranks counts as failing.
pub(super) const TARGETS_MAX: usize = 1 << 14;
/// Limit of the problems of one report that are kept.
const PROBLEMS_MAX: usize = 64;

/// All ranks that a source names.
#[derive(Debug, Clone, Default)]
pub(super) struct DiscoveredTargets {
    pub(super) targets: Arc<Targets>,
    /// Unusable entries with their reasons, up to [`PROBLEMS_MAX`].
    pub(super) problems: Arc<Vec<String>>,
}

impl DiscoveredTargets {
    pub(super) fn new(targets: Targets, mut problems: Vec<String>) -> Self {
        if problems.len() > PROBLEMS_MAX {
            let left_out = problems.len() - PROBLEMS_MAX;
            problems.truncate(PROBLEMS_MAX);
            problems.push(format!("and {left_out} more"));
        }
        let problems = problems.into_iter().map(shorten).collect::<Vec<_>>();
        Self { targets: Arc::new(targets), problems: Arc::new(problems) }
    }
}

/// Reports of a source since they were last taken.
#[derive(Debug, Default)]
pub(super) struct PendingReports {
    pub(super) found: Option<DiscoveredTargets>,
    /// Failure after the last report.
    pub(super) failure: Option<Failure>,
}

/// Failure of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// It does not respond, or its response is malformed.
    Unavailable(String),
    /// It names more than [`TARGETS_MAX`] ranks.
    TooMany(String),
}

impl Failure {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Unavailable(text) | Self::TooMany(text) => text,
        }
    }
}

/// Sends the reports of one source. Never blocks: a new report replaces the last one.
#[derive(Debug, Clone)]
pub(super) struct Reporter {
    reports: Arc<Mutex<PendingReports>>,
    wake: Sender<()>,
}

/// A source whose reports the caller makes, as in a simulation.
#[derive(Debug)]
pub struct ReportedSource(pub(super) Reporter);

impl ReportedSource {
    /// Reports all ranks that exist.
    pub fn found(&self, registrations: impl IntoIterator<Item = Registration>) {
        let targets = registrations.into_iter().map(|registration| (registration.rank_id(), registration));
        self.0.found(DiscoveredTargets::new(targets.collect(), Vec::new()));
    }

    /// Reports that the source failed: the cause and what to do.
    pub fn failed(&self, failure: String) {
        self.0.failed(failure);
    }
}

/// Receives the reports of one source.
#[derive(Debug)]
pub(super) struct Inbox(Arc<Mutex<PendingReports>>);

impl Reporter {
    pub(super) fn new(wake: &Sender<()>) -> (Self, Inbox) {
        let reports = Arc::default();
        (Self { reports: Arc::clone(&reports), wake: wake.clone() }, Inbox(reports))
    }

    /// Reports the ranks that the source names. Cheap if they are unchanged.
    pub(super) fn found(&self, found: DiscoveredTargets) {
        if found.targets.len() > TARGETS_MAX {
            let named = found.targets.len();
            let failure =
                format!("the source names {named} ranks: at most {TARGETS_MAX} can be registered; split the fleet");
            return self.update(|reports| reports.failure = Some(Failure::TooMany(failure)));
        }
        self.update(|reports| *reports = PendingReports { found: Some(found), failure: None });
    }

    /// Reports that the source failed: the cause and what to do.
    pub(super) fn failed(&self, failure: String) {
        self.update(|reports| reports.failure = Some(Failure::Unavailable(shorten(failure))));
    }

    fn update(&self, change: impl FnOnce(&mut PendingReports)) {
        change(&mut self.reports.lock());
        // It fails only if a wake-up is queued already.
        let _ = self.wake.try_send(());
    }
}

impl Inbox {
    /// Takes the reports since the last call.
    pub(super) fn take(&self) -> PendingReports {
        std::mem::take(&mut self.0.lock())
    }
}

/// Waker of the runner: sources send, the runner receives.
pub(super) fn waker() -> (Sender<()>, Receiver<()>) {
    bounded(1)
}
