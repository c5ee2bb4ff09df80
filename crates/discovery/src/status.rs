//! Status of discovery, for `/discovery` and `/ready`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flash_indexer_types::{RankId, Registration, SourceState, TargetState};
use parking_lot::Mutex;

use super::reconcile::TargetOutcome;

/// Time for which readiness waits for connections to engines that were registered at the start, but not by the configuration: they may have
/// stopped.
pub const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Status of all sources and their targets.
#[derive(Debug, Default)]
pub struct DiscoveryStatus(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    sources: Vec<SourceStatus>,
    /// Ranks in the first reports of all sources, and the time at which all sources had reported.
    initial: Option<(Instant, Vec<RankId>)>,
}

/// Status of one source.
#[derive(Debug, Clone)]
pub struct SourceStatus {
    /// Name of the source.
    pub name: String,
    /// Whether it responds.
    pub state: SourceState,
    /// Time of its last response.
    pub answered_at: Option<Instant>,
    /// Its current failure.
    pub error: Option<String>,
    /// Unusable entries of its last response.
    pub problems: Vec<String>,
    /// Ranks that it names.
    pub targets: Vec<TargetStatus>,
}

/// Status of one rank that a source names.
#[derive(Debug, Clone)]
pub struct TargetStatus {
    /// The rank.
    pub rank: RankId,
    /// Endpoint of the rank.
    pub endpoint: String,
    /// State of the target.
    pub state: TargetState,
    /// Why the rank is not registered as the source names it, and what to do.
    pub reason: Option<String>,
}

impl TargetOutcome {
    /// The state, with the cause and what to do unless the target is registered or about to be.
    fn into_state(self) -> (TargetState, Option<String>) {
        let (state, reason) = match self {
            Self::Registered => return (TargetState::Registered, None),
            Self::Waiting => return (TargetState::Waiting, None),
            Self::Leaving => (
                TargetState::Leaving,
                "the source no longer names it: it is unregistered when the grace period ends".to_owned(),
            ),
            Self::Overruled { by, endpoint } => (
                TargetState::Overruled,
                format!("{by} takes precedence and names it at {endpoint}: remove it from one of the sources"),
            ),
            Self::Manual => (
                TargetState::Manual,
                "registered manually, which takes precedence over discovery: POST /unregister to let discovery \
                 register it"
                    .to_owned(),
            ),
            Self::ManuallyUnregistered => (
                TargetState::Dismissed,
                "unregistered manually: discovery registers it again once the source has removed or changed it; or \
                 POST /register"
                    .to_owned(),
            ),
            Self::Refused(why) => (TargetState::Refused, why),
        };
        (state, Some(reason))
    }
}

impl TargetStatus {
    pub(super) fn new(registration: &Registration, outcome: TargetOutcome) -> Self {
        let (state, reason) = outcome.into_state();
        Self { rank: registration.rank_id(), endpoint: registration.options.endpoint.clone(), state, reason }
    }
}

impl SourceStatus {
    /// Number of targets in each state.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts: BTreeMap<_, _> = TargetState::ALL.map(|state| (state.as_str(), 0)).into();
        for target in &self.targets {
            *counts.entry(target.state.as_str()).or_default() += 1;
        }
        counts
    }
}

impl DiscoveryStatus {
    /// Replaces the status of all sources.
    pub(super) fn publish(&self, sources: Vec<SourceStatus>) {
        self.0.lock().sources = sources;
    }

    /// Sets the time of each source's last response.
    pub(super) fn set_answer_times(&self, at: impl Iterator<Item = Option<Instant>>) {
        for (source, at) in self.0.lock().sources.iter_mut().zip(at) {
            source.answered_at = at;
        }
    }

    /// Sets the initial ranks, once: all sources have reported, and these ranks are registered.
    pub(super) fn set_initial_ranks(&self, ranks: Vec<RankId>) {
        self.0.lock().initial.get_or_insert((Instant::now(), ranks));
    }

    /// Every source in order of precedence. Linear in the targets.
    pub fn sources(&self) -> Vec<SourceStatus> {
        self.0.lock().sources.clone()
    }

    /// Ranks in the first reports of all sources.
    pub fn initial_ranks(&self) -> Vec<RankId> {
        self.0.lock().initial.as_ref().map(|(_, ranks)| ranks.clone()).unwrap_or_default()
    }

    /// Why the service is not ready, if it is not. `unconnected` selects the ranks that are not connected.
    pub fn not_ready_reason(&self, unconnected: impl FnOnce(&[RankId]) -> Vec<RankId>) -> Option<String> {
        let inner = self.0.lock();
        let Some((since, ranks)) = &inner.initial else {
            let unreported = inner.sources.iter().filter(|source| source.answered_at.is_none());
            let unreported = unreported.map(|source| match &source.error {
                Some(error) => format!("{}: {error}", source.name),
                None => source.name.clone(),
            });
            return Some(format!(
                "discovery sources have not responded yet: {}",
                unreported.collect::<Vec<_>>().join("; ")
            ));
        };
        if since.elapsed() >= CONNECT_PATIENCE {
            return None;
        }
        let missing: Vec<String> = unconnected(ranks).iter().map(ToString::to_string).collect();
        (!missing.is_empty()).then(|| format!("not connected yet: {}", missing.join(", ")))
    }
}
