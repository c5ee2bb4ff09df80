//! The thread that makes registrations follow what sources name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, TryRecvError, select};
use tracing::{error, info, warn};

use super::reconcile::{Reconciler, Step};
use super::report::{Failure, Inbox, PendingReports};
use super::status::{DiscoveryStatus, SourceState, SourceStatus, TargetStatus};
use crate::registrar::Registrar;
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_telemetry::supervision::Watch;
use flash_indexer_types::EmptyModelPolicy;
use flash_indexer_types::RankId;
use flash_indexer_types::log_rank;
use flash_indexer_types::{Owner, Registered, Registration};

/// Whatever is due without news is done so late at most.
const TICK: Duration = Duration::from_millis(500);

/// A source as far as it is followed.
#[derive(Debug)]
pub(super) struct TrackedSource {
    name: Arc<str>,
    inbox: Inbox,
    answered_at: Option<Instant>,
    error: Option<String>,
    problems: Arc<Vec<String>>,
    /// Its targets' states that were logged.
    told: BTreeMap<RankId, &'static str>,
}

impl TrackedSource {
    pub(super) fn new(name: Arc<str>, inbox: Inbox) -> Self {
        let (answered_at, error, problems, told) = (None, None, Arc::default(), BTreeMap::new());
        Self { name, inbox, answered_at, error, problems, told }
    }
}

/// What following has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Registrations {
    Changed,
    AsTheyWere,
}

pub(super) struct Runner {
    sources: Vec<TrackedSource>,
    reconciler: Reconciler,
    registrar: Arc<dyn Registrar>,
    status: Arc<DiscoveryStatus>,
    /// What [`Registrar::registrations_changed`] said when everything was in order.
    in_order_at: Option<u64>,
}

impl Runner {
    pub(super) fn new(
        sources: Vec<TrackedSource>,
        grace: Duration,
        registrar: Arc<dyn Registrar>,
        status: &Arc<DiscoveryStatus>,
    ) -> Self {
        let reconciler = Reconciler::new(grace, sources.iter().map(|source| Arc::clone(&source.name)));
        let runner = Self { sources, reconciler, registrar, status: Arc::clone(status), in_order_at: None };
        runner.publish();
        runner
    }

    pub(super) fn run(mut self, watch: &Watch, heard: &Receiver<()>, stopped: &Receiver<()>) {
        while !self.registrar.is_stopping() {
            watch.begin(None);
            // What it had not done is done with the next look.
            watch.attempt(|| self.look());
            watch.end();
            select! {
                recv(stopped) -> _ => return,
                recv(heard) -> bell => if bell.is_err() {
                    // No source is left that could ring.
                    if stopped.try_recv() == Err(TryRecvError::Empty) {
                        error!("all sources of discovery have ended by a fault: what is registered stays");
                    }
                    return;
                },
                default(TICK) => {}
            }
        }
    }

    fn look(&mut self) {
        if self.listen() {
            self.in_order_at = None;
        }
        let is_recovering = self.registrar.is_recovering();
        let registrations = self.registrar.registrations_changed();
        match self.in_order_at == Some(registrations) {
            true => self.status.answered(self.sources.iter().map(|source| source.answered_at)),
            false if is_recovering => self.publish(),
            false => {
                // Something may have changed while it was looked at: what it said before counts.
                let is_in_order = self.follow() == Registrations::AsTheyWere && !self.reconciler.is_waiting();
                self.in_order_at = is_in_order.then_some(registrations);
            }
        }
    }

    /// Takes what sources have told since; whether that is news.
    fn listen(&mut self) -> bool {
        let now = Instant::now();
        let mut is_news = false;
        for (number, source) in self.sources.iter_mut().enumerate() {
            let PendingReports { found, failure } = source.inbox.take();
            if let Some(found) = found {
                self.registrar.metrics().discovery_polled(&source.name, "ok");
                self.registrar.metrics().discovery_succeeded(&source.name, SystemTime::now());
                if let Some(error) = source.error.take() {
                    is_news = true;
                    info!(source = &*source.name, error = error.as_str(), "discovery source responds again");
                }
                if source.problems != found.problems {
                    let log = |problem: &String| {
                        warn!(
                            source = &*source.name,
                            problem = problem.as_str(),
                            "discovery source has an unusable part"
                        );
                    };
                    found.problems.iter().for_each(log);
                }
                source.answered_at = Some(now);
                is_news |= source.problems != found.problems;
                source.problems = found.problems;
                is_news |= self.reconciler.answers(number, found.targets, now);
            }
            if let Some(failure) = failure {
                self.registrar.metrics().discovery_polled(&source.name, "failed");
                if let Failure::TooMany(_) = failure {
                    self.registrar.metrics().limit_reached(Limit::DiscoveryTargets);
                }
                if source.error.as_deref() != Some(failure.text()) {
                    is_news = true;
                    let error = failure.text();
                    error!(source = &*source.name, error, "discovery source failed; its registrations stay");
                }
                source.error = Some(failure.text().to_owned());
                self.reconciler.fails(number);
            }
        }
        is_news
    }

    /// Changes what must be changed.
    fn follow(&mut self) -> Registrations {
        let now = Instant::now();
        let steps = self.reconciler.steps(&self.registrar.registrations(), now);
        let registrations = if steps.is_empty() { Registrations::AsTheyWere } else { Registrations::Changed };
        let registered = |step: &Step| match step {
            Step::Register { registration, .. } => Some(registration.model.clone()),
            Step::Unregister(_) => None,
        };
        // A router that asks while its only engine moves is answered with nothing, and not refused.
        let come_back: BTreeSet<_> = steps.iter().filter_map(registered).collect();
        for step in steps {
            if self.registrar.is_stopping() {
                break;
            }
            match step {
                Step::Unregister(rank) => {
                    let emptied = match come_back.contains(&rank.model) {
                        true => EmptyModelPolicy::KeepForNext,
                        false => EmptyModelPolicy::Remove,
                    };
                    self.registrar.unregister(&rank, emptied);
                    self.registrar.metrics().discovery_change("unregistered");
                    log_rank!(debug, rank, "discovery unregistered a rank that its source no longer names");
                }
                Step::Register { registration, source } => self.register(registration, &source, now),
            }
        }
        if self.reconciler.has_answers() {
            self.status.has_begun(self.registered());
        }
        self.publish();
        self.tell_changes();
        registrations
    }

    fn register(&mut self, registration: Registration, source: &Arc<str>, now: Instant) {
        let rank = registration.rank_id();
        let endpoint = registration.endpoint.clone();
        // No registration is known to make the thread fail, so one does.
        #[cfg(any(test, feature = "fault-injection"))]
        assert!(rank.model.model_name != "runner-fault", "a test asked for a failure");
        let result = self.registrar.register(Owner::Source(Arc::clone(source)), registration.clone());
        match &result {
            Ok(Registered::New) => {
                self.registrar.metrics().discovery_change("registered");
                log_rank!(debug, rank, endpoint = endpoint.as_str(), source = &**source, "discovery registered a rank");
            }
            Ok(Registered::Already) => {}
            Err(_) => self.registrar.metrics().discovery_change("refused"),
        }
        self.reconciler.tried(&registration, result.map(drop), now);
    }

    fn registered(&self) -> Vec<RankId> {
        let kept = self.registrar.registrations().into_iter();
        kept.filter(|(_, kept)| matches!(kept.owner, Owner::Source(_))).map(|(rank, _)| rank).collect()
    }

    fn publish(&self) {
        let kept = self.registrar.registrations();
        let sources = self.sources.iter().enumerate().map(|(number, source)| {
            let standings = self.reconciler.standings(number, &kept);
            let status = SourceStatus {
                name: source.name.to_string(),
                state: match (&source.error, source.answered_at) {
                    (Some(_), _) => SourceState::Failing,
                    (None, Some(_)) => SourceState::Ok,
                    (None, None) => SourceState::Waiting,
                },
                answered_at: source.answered_at,
                error: source.error.clone(),
                problems: source.problems.to_vec(),
                targets: standings.map(|(target, standing)| TargetStatus::new(target, &standing)).collect(),
            };
            self.registrar.metrics().discovery_targets(&source.name, &status.counts());
            status
        });
        self.status.publish(sources.collect());
    }

    /// Logs each target that does not become what its source wants, once.
    fn tell_changes(&mut self) {
        let sources = self.status.sources();
        for (source, status) in self.sources.iter_mut().zip(sources) {
            let mut told = BTreeMap::new();
            for target in status.targets {
                let key = target.rank();
                let is_new = source.told.get(&key) != Some(&target.state);
                if let Some(reason) = target.reason.as_ref().filter(|_| is_new && target.state != "leaving") {
                    let (source, state, endpoint) = (&*source.name, target.state, target.endpoint.as_str());
                    log_rank!(
                        warn,
                        key,
                        endpoint,
                        source,
                        state,
                        reason = reason.as_str(),
                        "discovered rank is not followed"
                    );
                }
                told.insert(key, target.state);
            }
            source.told = told;
        }
    }
}
