//! What sources tell, on its way to whoever acts upon it.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use super::reconcile::Targets;
use flash_indexer_types::names::shorten;

/// Ranks that one source may name. A source that names more is taken to fail.
pub(super) const TARGETS_MAX: usize = 1 << 14;
/// Problems of one answer that are remembered.
const PROBLEMS_MAX: usize = 64;

/// Everything that a source names.
#[derive(Debug, Clone, Default)]
pub(super) struct DiscoveredTargets {
    pub(super) targets: Arc<Targets>,
    /// What it names that cannot be used, and why; as many as are remembered.
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

/// What a source has told since somebody listened.
#[derive(Debug, Default)]
pub(super) struct PendingReports {
    pub(super) found: Option<DiscoveredTargets>,
    /// Why it cannot tell more, after that.
    pub(super) failure: Option<Failure>,
}

/// A source cannot tell what it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// It does not answer, or not what can be read.
    Fails(String),
    /// It names too much.
    TooMany(String),
}

impl Failure {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Fails(text) | Self::TooMany(text) => text,
        }
    }
}

/// One source's side: never waits, because only the latest news count.
#[derive(Debug, Clone)]
pub(super) struct Reporter {
    news: Arc<Mutex<PendingReports>>,
    wake: Sender<()>,
}

/// The listener's side.
#[derive(Debug)]
pub(super) struct Inbox(Arc<Mutex<PendingReports>>);

impl Reporter {
    pub(super) fn new(wake: &Sender<()>) -> (Self, Inbox) {
        let news = Arc::default();
        (Self { news: Arc::clone(&news), wake: wake.clone() }, Inbox(news))
    }

    /// The source has answered. Cheap when `found` is what it was.
    pub(super) fn found(&self, found: DiscoveredTargets) {
        if found.targets.len() > TARGETS_MAX {
            let (named, problem) = (found.targets.len(), "is more than can be registered");
            let failure = format!("it names {named} ranks, which {problem}: at most {TARGETS_MAX}; split the fleet");
            return self.tell(|news| news.failure = Some(Failure::TooMany(failure)));
        }
        self.tell(|news| *news = PendingReports { found: Some(found), failure: None });
    }

    /// The source cannot answer; what to do about it is in the text.
    pub(super) fn failed(&self, failure: String) {
        self.tell(|news| news.failure = Some(Failure::Fails(shorten(failure))));
    }

    fn tell(&self, change: impl FnOnce(&mut PendingReports)) {
        change(&mut self.news.lock());
        // Full means that it is about to look.
        let _ = self.wake.try_send(());
    }
}

impl Inbox {
    pub(super) fn take(&self) -> PendingReports {
        std::mem::take(&mut self.0.lock())
    }
}

/// Rung by sources, heard by the thread that listens to them.
pub(super) fn bell() -> (Sender<()>, Receiver<()>) {
    bounded(1)
}
