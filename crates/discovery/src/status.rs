//! What `/discovery` and `/ready` tell.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flash_indexer_core::DpRank;
use parking_lot::Mutex;
use serde::Serialize;

use super::reconcile::TargetOutcome;
use flash_indexer_types::RankId;
use flash_indexer_types::Registration;
use flash_indexer_types::{InstanceId, ModelKey};

/// Engines that sources named first are waited for so long before the service is ready without them.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// What sources told last and what became of it.
#[derive(Debug, Default)]
pub struct DiscoveryStatus(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    sources: Vec<SourceStatus>,
    /// Ranks that the first answers of all sources named, and when all had answered.
    first: Option<(Instant, Vec<RankId>)>,
}

/// One source at one moment.
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
    /// Parts of its last response that cannot be used.
    pub problems: Vec<String>,
    /// The ranks that it names.
    pub targets: Vec<TargetStatus>,
}

/// Whether a source tells what it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    /// It has not told anything yet.
    Waiting,
    /// It has told when it was last asked.
    Ok,
    /// It could not tell when it was last asked: what it named before stands.
    Failing,
}

/// One rank that a source names.
#[derive(Debug, Clone, Serialize)]
pub struct TargetStatus {
    instance_id: InstanceId,
    dp_rank: u32,
    model_name: String,
    tenant_id: String,
    /// Endpoint of the rank.
    pub endpoint: String,
    /// State of the target, as answers name it.
    pub state: &'static str,
    /// Why the rank is not followed as the source names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// States of targets, as they are shown and counted.
const TARGET_STATES: [&str; 7] = ["registered", "waiting", "leaving", "overruled", "by_hand", "dismissed", "refused"];

impl TargetOutcome {
    /// The name in answers and metrics.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Registered => TARGET_STATES[0],
            Self::Waiting => TARGET_STATES[1],
            Self::Leaving => TARGET_STATES[2],
            Self::Overruled { .. } => TARGET_STATES[3],
            Self::ByHand => TARGET_STATES[4],
            Self::Dismissed => TARGET_STATES[5],
            Self::Refused(_) => TARGET_STATES[6],
        }
    }

    /// What people want to know besides.
    fn reason(&self) -> Option<String> {
        Some(match self {
            Self::Registered | Self::Waiting => return None,
            Self::Leaving => "no longer named: unregistered when the grace is over".to_owned(),
            Self::Overruled { by, endpoint } => {
                format!("{by} names it as well, goes before, and has it at {endpoint}: let one of them name it")
            }
            Self::ByHand => {
                "registered by hand, which discovery leaves as it is: POST /unregister to end that".to_owned()
            }
            Self::Dismissed => {
                "unregistered by hand: it stays so until the source has stopped naming it or names it in another way, \
                 or POST /register"
                    .to_owned()
            }
            Self::Refused(why) => why.clone(),
        })
    }
}

impl TargetStatus {
    pub(super) fn new(registration: &Registration, standing: &TargetOutcome) -> Self {
        Self {
            instance_id: registration.instance.clone(),
            dp_rank: registration.dp_rank.0,
            model_name: registration.model.model_name.clone(),
            tenant_id: registration.model.tenant_id.clone(),
            endpoint: registration.endpoint.clone(),
            state: standing.as_str(),
            reason: standing.reason(),
        }
    }

    pub(super) fn rank(&self) -> RankId {
        let model = ModelKey { model_name: self.model_name.clone(), tenant_id: self.tenant_id.clone() };
        RankId { model, instance: self.instance_id.clone(), dp_rank: DpRank(self.dp_rank) }
    }
}

impl SourceStatus {
    /// How many targets are in each state.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts: BTreeMap<_, _> = TARGET_STATES.map(|state| (state, 0)).into();
        for target in &self.targets {
            *counts.entry(target.state).or_default() += 1;
        }
        counts
    }
}

impl DiscoveryStatus {
    pub(super) fn publish(&self, sources: Vec<SourceStatus>) {
        self.0.lock().sources = sources;
    }

    /// When each source answered last; nothing else has changed.
    pub(super) fn answered(&self, at: impl Iterator<Item = Option<Instant>>) {
        for (source, at) in self.0.lock().sources.iter_mut().zip(at) {
            source.answered_at = at;
        }
    }

    /// All sources have answered, and these ranks were registered.
    pub(super) fn has_begun(&self, ranks: Vec<RankId>) {
        self.0.lock().first.get_or_insert((Instant::now(), ranks));
    }

    /// Every source in order of precedence. Linear in the targets.
    pub fn sources(&self) -> Vec<SourceStatus> {
        self.0.lock().sources.clone()
    }

    /// The ranks that the first reports of all sources named.
    pub fn initial_ranks(&self) -> Vec<RankId> {
        self.0.lock().first.as_ref().map(|(_, ranks)| ranks.clone()).unwrap_or_default()
    }

    /// Why the service is not ready yet, if that is so; `unconnected` picks those ranks that are not connected.
    pub fn not_ready_reason(&self, unconnected: impl FnOnce(&[RankId]) -> Vec<RankId>) -> Option<String> {
        let inner = self.0.lock();
        let Some((since, ranks)) = &inner.first else {
            let silent = inner.sources.iter().filter(|source| source.answered_at.is_none());
            let silent = silent.map(|source| match &source.error {
                Some(error) => format!("{}: {error}", source.name),
                None => source.name.clone(),
            });
            return Some(format!(
                "discovery has not told yet which engines there are: {}",
                silent.collect::<Vec<_>>().join("; ")
            ));
        };
        if since.elapsed() >= CONNECT_PATIENCE {
            return None;
        }
        let missing: Vec<String> = unconnected(ranks).iter().map(ToString::to_string).collect();
        (!missing.is_empty()).then(|| format!("not connected yet: {}", missing.join(", ")))
    }
}
