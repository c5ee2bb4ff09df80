//! The reconciler: computes the steps that make registrations follow the reports of sources. No I/O and no clock: time is
//! passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flash_indexer_types::{OwnedRank, Owner, RankId, Registration};

/// All ranks that a source names, with their registrations.
pub(crate) type Targets = BTreeMap<RankId, Registration>;

/// Pause before a refused registration is retried: the obstacle may have been removed.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// One change of the registrations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Unregister(RankId),
    Register { registration: Registration, source: Arc<str> },
}

/// State of a rank that a source names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetOutcome {
    /// Registered as the source names it.
    Registered,
    /// About to be registered.
    Waiting,
    /// The source no longer names it. It is unregistered when the grace period ends.
    Leaving,
    /// A source with precedence names it with another registration.
    Overruled { by: Arc<str>, endpoint: String },
    /// Registered manually.
    Manual,
    /// Unregistered manually.
    ManuallyUnregistered,
    /// The registration is refused, for this reason.
    Refused(String),
}

/// Reconciles registrations with several sources. The first source that names a rank determines its registration.
///
/// A rank that its source no longer names is unregistered when the grace period ends. A failing source never unregisters
/// ranks: its grace periods end when it reports again, at the earliest. Manual registrations stay. A rank that is
/// unregistered manually is registered again only after its source has removed or changed it.
#[derive(Debug)]
pub(crate) struct Reconciler {
    grace: Duration,
    sources: Vec<Source>,
    /// Last attempt to register each desired rank.
    attempts: BTreeMap<RankId, Attempt>,
    /// Ranks of peers that no source names, with the time since which all sources report.
    unclaimed: BTreeMap<RankId, Instant>,
}

#[derive(Debug)]
struct Source {
    name: Arc<str>,
    state: SourceState,
    /// Its last report, to detect an unchanged one by its pointer.
    last: Arc<Targets>,
    desired: BTreeMap<RankId, DesiredRank>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceState {
    /// It has never reported.
    NeverReported,
    Reporting,
    Failing,
}

#[derive(Debug)]
struct DesiredRank {
    registration: Registration,
    /// Time since which the source no longer names it; none while it does.
    absent_since: Option<Instant>,
}

#[derive(Debug)]
struct Attempt {
    registration: Registration,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    Registered,
    Refused { why: String, retry_at: Instant },
    ManuallyUnregistered,
}

impl Reconciler {
    /// Reconciler of the sources with these names, in order of precedence.
    pub(crate) fn new(grace: Duration, names: impl IntoIterator<Item = Arc<str>>) -> Self {
        let sources = names.into_iter().map(|name| Source {
            name,
            state: SourceState::NeverReported,
            last: Arc::default(),
            desired: BTreeMap::new(),
        });
        Self { grace, sources: sources.collect(), attempts: BTreeMap::new(), unclaimed: BTreeMap::new() }
    }

    /// Takes a report of a source. Returns whether it may lead to steps.
    pub(crate) fn source_reported(&mut self, source: usize, targets: Arc<Targets>, now: Instant) -> bool {
        let source = &mut self.sources[source];
        let state = std::mem::replace(&mut source.state, SourceState::Reporting);
        if state != SourceState::NeverReported && Arc::ptr_eq(&source.last, &targets) {
            return state == SourceState::Failing;
        }
        for (rank, desired_rank) in &mut source.desired {
            if !targets.contains_key(rank) {
                desired_rank.absent_since.get_or_insert(now);
            }
        }
        for (rank, registration) in targets.iter() {
            source.desired.insert(rank.clone(), DesiredRank { registration: registration.clone(), absent_since: None });
        }
        source.last = targets;
        true
    }

    /// Marks a source as failing. Its last report stays valid.
    pub(crate) fn source_failed(&mut self, source: usize) {
        let state = &mut self.sources[source].state;
        if *state == SourceState::Reporting {
            *state = SourceState::Failing;
        }
    }

    /// Whether every source has reported at least once.
    pub(crate) fn have_all_reported(&self) -> bool {
        self.sources.iter().all(|source| source.state != SourceState::NeverReported)
    }

    /// Whether further steps may follow without another report.
    pub(crate) fn has_deadlines(&self) -> bool {
        let mut desired = self.sources.iter().flat_map(|source| source.desired.values());
        let mut attempts = self.attempts.values();
        desired.any(|desired_rank| desired_rank.absent_since.is_some())
            || attempts.any(|attempt| matches!(attempt.outcome, Outcome::Refused { .. }))
            || !self.unclaimed.is_empty()
    }

    /// Steps to carry out now, in order.
    pub(crate) fn steps(&mut self, owned: &BTreeMap<RankId, OwnedRank>, now: Instant) -> Vec<Step> {
        self.expire(now);
        self.detect_manual_unregistrations(owned);
        let mut steps = self.unregister_stale(owned, now);
        for rank in self.desired_ranks() {
            if let Some((source, desired_rank)) = self.winner(&rank)
                && self.is_due(&rank, desired_rank, &source.name, owned.get(&rank), now)
            {
                if owned.get(&rank).is_some_and(|owned| owned.registration != desired_rank.registration) {
                    steps.push(Step::Unregister(rank.clone()));
                }
                let (registration, source) = (desired_rank.registration.clone(), Arc::clone(&source.name));
                steps.push(Step::Register { registration, source });
            }
        }
        // Unregister first: a refused registration may need the room.
        steps.sort_by_key(|step| matches!(step, Step::Register { .. }));
        steps
    }

    /// Records the result of a step that registers a rank.
    pub(crate) fn record_attempt(&mut self, registration: &Registration, result: Result<(), String>, now: Instant) {
        let outcome = match result {
            Ok(()) => Outcome::Registered,
            Err(why) => Outcome::Refused { why, retry_at: now + RETRY },
        };
        self.attempts.insert(registration.rank_id(), Attempt { registration: registration.clone(), outcome });
    }

    /// Every rank that a source names, with its state.
    pub(crate) fn outcomes<'r>(
        &'r self,
        source: usize,
        owned: &'r BTreeMap<RankId, OwnedRank>,
    ) -> impl Iterator<Item = (&'r Registration, TargetOutcome)> {
        let desired = self.sources[source].desired.iter();
        desired.map(move |(rank, desired_rank)| {
            (&desired_rank.registration, self.outcome(rank, desired_rank, owned.get(rank)))
        })
    }

    fn outcome(&self, rank: &RankId, desired_rank: &DesiredRank, owned: Option<&OwnedRank>) -> TargetOutcome {
        if desired_rank.absent_since.is_some() {
            return TargetOutcome::Leaving;
        }
        if owned.is_some_and(|owned| owned.owner == Owner::Manual) {
            return TargetOutcome::Manual;
        }
        if let Some((by, winner)) = self.winner(rank)
            && winner.registration != desired_rank.registration
        {
            return TargetOutcome::Overruled {
                by: Arc::clone(&by.name),
                endpoint: winner.registration.options.endpoint.clone(),
            };
        }
        if owned.is_some_and(|owned| owned.registration == desired_rank.registration) {
            return TargetOutcome::Registered;
        }
        match self.last_outcome(rank, desired_rank) {
            Some(Outcome::Refused { why, .. }) => TargetOutcome::Refused(why.clone()),
            Some(Outcome::ManuallyUnregistered) => TargetOutcome::ManuallyUnregistered,
            Some(Outcome::Registered) | None => TargetOutcome::Waiting,
        }
    }

    /// Outcome of the last attempt to register a rank as it is desired now.
    fn last_outcome(&self, rank: &RankId, desired_rank: &DesiredRank) -> Option<&Outcome> {
        let attempt = self.attempts.get(rank)?;
        (attempt.registration == desired_rank.registration).then_some(&attempt.outcome)
    }

    /// The first source that names a rank, with its registration.
    fn winner(&self, rank: &RankId) -> Option<(&Source, &DesiredRank)> {
        let desired = self.sources.iter().filter_map(|source| Some((source, source.desired.get(rank)?)));
        desired.into_iter().find(|(_, desired_rank)| desired_rank.absent_since.is_none())
    }

    fn desired_ranks(&self) -> BTreeSet<RankId> {
        self.sources.iter().flat_map(|source| source.desired.keys().cloned()).collect()
    }

    /// Whether a rank is to be registered now.
    fn is_due(
        &self,
        rank: &RankId,
        desired_rank: &DesiredRank,
        source: &Arc<str>,
        owned: Option<&OwnedRank>,
        now: Instant,
    ) -> bool {
        match owned {
            Some(OwnedRank { owner: Owner::Manual, .. }) => false,
            Some(owned) => {
                owned.registration != desired_rank.registration || owned.owner != Owner::Source(Arc::clone(source))
            }
            None => match self.last_outcome(rank, desired_rank) {
                Some(Outcome::Refused { retry_at, .. }) => now >= *retry_at,
                Some(Outcome::Registered | Outcome::ManuallyUnregistered) => false,
                None => true,
            },
        }
    }

    /// Detects ranks that were registered for a source and are missing without a step: they were unregistered manually.
    fn detect_manual_unregistrations(&mut self, owned: &BTreeMap<RankId, OwnedRank>) {
        for (rank, attempt) in &mut self.attempts {
            if matches!(attempt.outcome, Outcome::Registered) && !owned.contains_key(rank) {
                attempt.outcome = Outcome::ManuallyUnregistered;
            }
        }
    }

    /// Removes ranks whose grace period has ended, and ranks whose endpoint another rank has now.
    fn expire(&mut self, now: Instant) {
        let present = self.sources.iter().flat_map(|source| source.desired.values());
        let present = present.filter(|desired_rank| desired_rank.absent_since.is_none());
        let present = present.map(|DesiredRank { registration, .. }| registration);
        let endpoints: BTreeMap<String, RankId> =
            present.map(|registration| (registration.options.endpoint.clone(), registration.rank_id())).collect();
        for source in self.sources.iter_mut().filter(|source| source.state == SourceState::Reporting) {
            source.desired.retain(|rank, desired_rank| {
                let Some(since) = desired_rank.absent_since else { return true };
                let is_reassigned =
                    endpoints.get(&desired_rank.registration.options.endpoint).is_some_and(|other| other != rank);
                !is_reassigned && now.saturating_duration_since(since) < self.grace
            });
        }
        let desired_ranks = self.desired_ranks();
        self.attempts.retain(|rank, _| desired_ranks.contains(rank));
    }

    /// Steps that unregister ranks that no source names any more.
    fn unregister_stale(&mut self, owned: &BTreeMap<RankId, OwnedRank>, now: Instant) -> Vec<Step> {
        let all_report = self.sources.iter().all(|source| source.state == SourceState::Reporting);
        let mut unclaimed = std::mem::take(&mut self.unclaimed);
        let mut steps = Vec::new();
        for (rank, owned) in owned {
            if self.winner(rank).is_some() {
                continue;
            }
            match &owned.owner {
                Owner::Manual | Owner::Pod => {}
                Owner::Source(_) => {
                    // A rank in its grace period keeps only its existing registration.
                    let mut desired = self.sources.iter().filter_map(|source| source.desired.get(rank));
                    if desired.all(|desired_rank| desired_rank.registration != owned.registration) {
                        steps.push(Step::Unregister(rank.clone()));
                    }
                }
                // This includes a rank that a source named during the recovery: its grace period does not begin again.
                Owner::Peer if all_report => {
                    let since = unclaimed.remove(rank).unwrap_or(now);
                    match now.saturating_duration_since(since) < self.grace {
                        true => drop(self.unclaimed.insert(rank.clone(), since)),
                        false => steps.push(Step::Unregister(rank.clone())),
                    }
                }
                Owner::Peer => {}
            }
        }
        steps
    }
}

#[cfg(test)]
mod tests;
