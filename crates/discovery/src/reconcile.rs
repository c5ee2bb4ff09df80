//! What must be registered and unregistered so that what is registered follows what sources name. No I/O, no
//! clock: time is passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flash_indexer_types::RankId;
use flash_indexer_types::{OwnedRank, Owner, Registration};

/// Everything that a source names at one moment.
pub(crate) type Targets = BTreeMap<RankId, Registration>;

/// A refused registration is tried again after so long: what stands in its way may go.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// One change that must be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Unregister(RankId),
    Register { registration: Registration, source: Arc<str> },
}

/// What becomes of one source's wish for one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetOutcome {
    /// It is registered so.
    Registered,
    /// It is about to be.
    Waiting,
    /// The source names it no more, and it goes when the grace is over.
    Leaving,
    /// Another source, which goes before, names it in another way.
    Overruled { by: Arc<str>, endpoint: String },
    /// Somebody has registered the rank by hand.
    ByHand,
    /// Somebody has unregistered the rank by hand.
    Dismissed,
    /// It cannot be registered, for this reason.
    Refused(String),
}

/// Follows several sources. The first of them that names a rank says how it is registered.
///
/// A rank that its source names no more is unregistered once that has been so for the grace; of a source that fails
/// nothing is unregistered, and its grace goes on to run out when it answers again. What people register stays,
/// and what they unregister stays away until its source has stopped naming it or names it in another way.
#[derive(Debug)]
pub(crate) struct Reconciler {
    grace: Duration,
    sources: Vec<Source>,
    /// What was tried for ranks that are named.
    tried: BTreeMap<RankId, Attempt>,
    /// Ranks that were discovered by another service and that nobody has named here, since when all sources answer.
    unnamed: BTreeMap<RankId, Instant>,
}

#[derive(Debug)]
struct Source {
    name: Arc<str>,
    state: SourceState,
    /// Its last answer, to see at once that nothing has changed.
    last: Arc<Targets>,
    wishes: BTreeMap<RankId, DesiredRank>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceState {
    /// It has never answered.
    Silent,
    Answers,
    Fails,
}

#[derive(Debug)]
struct DesiredRank {
    registration: Registration,
    /// Since when the source does not name it; none while it does.
    gone_since: Option<Instant>,
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
    Dismissed,
}

impl Reconciler {
    /// Follows the sources of these names; the first goes before the second.
    pub(crate) fn new(grace: Duration, names: impl IntoIterator<Item = Arc<str>>) -> Self {
        let sources = names.into_iter().map(|name| Source {
            name,
            state: SourceState::Silent,
            last: Arc::default(),
            wishes: BTreeMap::new(),
        });
        Self { grace, sources: sources.collect(), tried: BTreeMap::new(), unnamed: BTreeMap::new() }
    }

    /// A source has told everything that it names; whether anything follows from that.
    pub(crate) fn answers(&mut self, source: usize, targets: Arc<Targets>, now: Instant) -> bool {
        let source = &mut self.sources[source];
        let state = std::mem::replace(&mut source.state, SourceState::Answers);
        if state != SourceState::Silent && Arc::ptr_eq(&source.last, &targets) {
            return state == SourceState::Fails;
        }
        for (rank, wish) in &mut source.wishes {
            if !targets.contains_key(rank) {
                wish.gone_since.get_or_insert(now);
            }
        }
        for (rank, registration) in targets.iter() {
            source.wishes.insert(rank.clone(), DesiredRank { registration: registration.clone(), gone_since: None });
        }
        source.last = targets;
        true
    }

    /// A source cannot tell what it names: what it named last stands.
    pub(crate) fn fails(&mut self, source: usize) {
        let state = &mut self.sources[source].state;
        if *state == SourceState::Answers {
            *state = SourceState::Fails;
        }
    }

    /// Whether every source has answered at least once.
    pub(crate) fn has_answers(&self) -> bool {
        self.sources.iter().all(|source| source.state != SourceState::Silent)
    }

    /// Whether something will have to be done later without any news.
    pub(crate) fn is_waiting(&self) -> bool {
        let mut wishes = self.sources.iter().flat_map(|source| source.wishes.values());
        let mut tried = self.tried.values();
        wishes.any(|wish| wish.gone_since.is_some())
            || tried.any(|tried| matches!(tried.outcome, Outcome::Refused { .. }))
            || !self.unnamed.is_empty()
    }

    /// What must be done now, in this order.
    pub(crate) fn steps(&mut self, kept: &BTreeMap<RankId, OwnedRank>, now: Instant) -> Vec<Step> {
        self.forget_gone(now);
        self.note_dismissed(kept);
        let mut steps = self.tombstones(kept, now);
        for rank in self.named() {
            if let Some((source, wish)) = self.decisive(&rank)
                && self.is_due(&rank, wish, &source.name, kept.get(&rank), now)
            {
                if kept.get(&rank).is_some_and(|kept| kept.registration != wish.registration) {
                    steps.push(Step::Unregister(rank.clone()));
                }
                let (registration, source) = (wish.registration.clone(), Arc::clone(&source.name));
                steps.push(Step::Register { registration, source });
            }
        }
        // What is refused may only have to wait for others to go.
        steps.sort_by_key(|step| matches!(step, Step::Register { .. }));
        steps
    }

    /// A step to register a rank has been taken.
    pub(crate) fn tried(&mut self, registration: &Registration, result: Result<(), String>, now: Instant) {
        let outcome = match result {
            Ok(()) => Outcome::Registered,
            Err(why) => Outcome::Refused { why, retry_at: now + RETRY },
        };
        self.tried.insert(registration.rank_id(), Attempt { registration: registration.clone(), outcome });
    }

    /// Every wish of a source, and what becomes of it.
    pub(crate) fn standings<'r>(
        &'r self,
        source: usize,
        kept: &'r BTreeMap<RankId, OwnedRank>,
    ) -> impl Iterator<Item = (&'r Registration, TargetOutcome)> {
        let wishes = self.sources[source].wishes.iter();
        wishes.map(move |(rank, wish)| (&wish.registration, self.standing(rank, wish, kept.get(rank))))
    }

    fn standing(&self, rank: &RankId, wish: &DesiredRank, kept: Option<&OwnedRank>) -> TargetOutcome {
        if wish.gone_since.is_some() {
            return TargetOutcome::Leaving;
        }
        if kept.is_some_and(|kept| kept.owner == Owner::Manual) {
            return TargetOutcome::ByHand;
        }
        if let Some((by, decisive)) = self.decisive(rank)
            && decisive.registration != wish.registration
        {
            return TargetOutcome::Overruled {
                by: Arc::clone(&by.name),
                endpoint: decisive.registration.endpoint.clone(),
            };
        }
        if kept.is_some_and(|kept| kept.registration == wish.registration) {
            return TargetOutcome::Registered;
        }
        match self.tried.get(rank).filter(|tried| tried.registration == wish.registration).map(|tried| &tried.outcome) {
            Some(Outcome::Refused { why, .. }) => TargetOutcome::Refused(why.clone()),
            Some(Outcome::Dismissed) => TargetOutcome::Dismissed,
            Some(Outcome::Registered) | None => TargetOutcome::Waiting,
        }
    }

    /// The wish that counts for a rank: of the first source that names it.
    fn decisive(&self, rank: &RankId) -> Option<(&Source, &DesiredRank)> {
        let wishes = self.sources.iter().filter_map(|source| Some((source, source.wishes.get(rank)?)));
        wishes.into_iter().find(|(_, wish)| wish.gone_since.is_none())
    }

    fn named(&self) -> BTreeSet<RankId> {
        self.sources.iter().flat_map(|source| source.wishes.keys().cloned()).collect()
    }

    /// Whether a wish that counts must be carried out.
    fn is_due(
        &self,
        rank: &RankId,
        wish: &DesiredRank,
        source: &Arc<str>,
        kept: Option<&OwnedRank>,
        now: Instant,
    ) -> bool {
        match kept {
            Some(OwnedRank { owner: Owner::Manual, .. }) => false,
            Some(kept) => kept.registration != wish.registration || kept.owner != Owner::Source(Arc::clone(source)),
            None => self.tried.get(rank).filter(|tried| tried.registration == wish.registration).is_none_or(|tried| {
                match tried.outcome {
                    Outcome::Refused { retry_at, .. } => now >= retry_at,
                    Outcome::Registered | Outcome::Dismissed => false,
                }
            }),
        }
    }

    /// What was registered for a source and is gone without a step of ours was unregistered by hand.
    fn note_dismissed(&mut self, kept: &BTreeMap<RankId, OwnedRank>) {
        for (rank, tried) in &mut self.tried {
            if matches!(tried.outcome, Outcome::Registered) && !kept.contains_key(rank) {
                tried.outcome = Outcome::Dismissed;
            }
        }
    }

    /// Forgets what sources that answer have not named for the grace, and addresses that another rank has now.
    fn forget_gone(&mut self, now: Instant) {
        let present = self.sources.iter().flat_map(|source| source.wishes.values());
        let present = present.filter(|wish| wish.gone_since.is_none());
        let taken: BTreeMap<String, RankId> =
            present.map(|wish| (wish.registration.endpoint.clone(), wish.registration.rank_id())).collect();
        for source in self.sources.iter_mut().filter(|source| source.state == SourceState::Answers) {
            source.wishes.retain(|rank, wish| {
                let Some(since) = wish.gone_since else { return true };
                let handed_on = taken.get(&wish.registration.endpoint).is_some_and(|other| other != rank);
                !handed_on && now.saturating_duration_since(since) < self.grace
            });
        }
        let named = self.named();
        self.tried.retain(|rank, _| named.contains(rank));
    }

    /// Registered ranks that nobody names any more.
    fn tombstones(&mut self, kept: &BTreeMap<RankId, OwnedRank>, now: Instant) -> Vec<Step> {
        let all_answer = self.sources.iter().all(|source| source.state == SourceState::Answers);
        let mut unnamed = std::mem::take(&mut self.unnamed);
        let mut steps = Vec::new();
        for (rank, kept) in kept {
            let mut wishes = self.sources.iter().filter_map(|source| source.wishes.get(rank));
            let is_wanted = match self.decisive(rank) {
                Some(_) => true,
                // A wish that is about to go keeps what there is, and nothing else.
                None => wishes.any(|wish| wish.registration == kept.registration),
            };
            match &kept.owner {
                Owner::Manual | Owner::Pod => {}
                _ if is_wanted => {}
                Owner::Source(_) => steps.push(Step::Unregister(rank.clone())),
                Owner::Peer if all_answer => {
                    let since = unnamed.remove(rank).unwrap_or(now);
                    match now.saturating_duration_since(since) < self.grace {
                        true => drop(self.unnamed.insert(rank.clone(), since)),
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
