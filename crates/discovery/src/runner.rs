//! The runner: the thread that reconciles registrations with the reports of sources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, TryRecvError, select};
use flash_indexer_telemetry::clock::Clock;
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_telemetry::supervision::{Step as ThreadStep, Steps, Watch};
use flash_indexer_types::{
    EmptyModelPolicy, Owner, RankId, Registration, RegistrationOutcome, SourceState, TargetState, log_rank,
};
use tracing::{error, info, warn};

use super::reconcile::{Reconciler, Step};
use super::report::{Failure, Inbox, PendingReports};
use super::status::{DiscoveryStatus, SourceStatus, TargetStatus};
use crate::registrar::Registrar;

/// Interval at which deadlines are checked without reports.
const TICK: Duration = Duration::from_millis(500);

/// A source with its last report.
#[derive(Debug)]
pub(super) struct TrackedSource {
    name: Arc<str>,
    inbox: Inbox,
    answered_at: Option<Instant>,
    error: Option<String>,
    problems: Arc<Vec<String>>,
    /// Logged states of its targets.
    logged_states: BTreeMap<RankId, TargetState>,
}

impl TrackedSource {
    pub(super) fn new(name: Arc<str>, inbox: Inbox) -> Self {
        let (answered_at, error, problems, logged_states) = (None, None, Arc::default(), BTreeMap::new());
        Self { name, inbox, answered_at, error, problems, logged_states }
    }
}

/// State of the runner thread.
pub(super) struct Runner {
    sources: Vec<TrackedSource>,
    reconciler: Reconciler,
    registrar: Arc<dyn Registrar>,
    status: Arc<DiscoveryStatus>,
    /// [`Registrar::registrations_version`] at which no step was left.
    reconciled_at: Option<u64>,
    signals: RunnerSignals,
    /// When deadlines are checked without reports.
    poll_at: Instant,
}

/// Channels by which a runner is woken.
#[derive(Debug)]
pub(super) struct RunnerSignals {
    /// Receives a message after a report.
    pub(super) woken: Receiver<()>,
    /// Disconnected when the runner is to stop.
    pub(super) stopped: Receiver<()>,
}

impl Runner {
    pub(super) fn new(
        sources: Vec<TrackedSource>,
        grace: Duration,
        registrar: Arc<dyn Registrar>,
        status: &Arc<DiscoveryStatus>,
        signals: RunnerSignals,
    ) -> Self {
        let reconciler = Reconciler::new(grace, sources.iter().map(|source| Arc::clone(&source.name)));
        let (status, poll_at) = (Arc::clone(status), registrar.supervisor().clock().now());
        let runner = Self { sources, reconciler, registrar, status, reconciled_at: None, signals, poll_at };
        runner.publish();
        runner
    }

    fn now(&self) -> Instant {
        self.registrar.supervisor().clock().now()
    }

    fn poll(&mut self) {
        if self.receive_reports() {
            self.reconciled_at = None;
        }
        let is_recovering = self.registrar.is_recovering();
        let registrations = self.registrar.registrations_version();
        match self.reconciled_at == Some(registrations) {
            true => self.status.set_answer_times(self.sources.iter().map(|source| source.answered_at)),
            false if is_recovering => self.publish(),
            false => {
                // Registrations may have changed meanwhile, so the version read before counts.
                let had_steps = self.reconcile();
                let is_reconciled = !had_steps && !self.reconciler.has_deadlines();
                self.reconciled_at = is_reconciled.then_some(registrations);
            }
        }
    }

    /// Receives the reports of sources. Returns whether any of them changed.
    fn receive_reports(&mut self) -> bool {
        let now = self.now();
        let mut is_changed = false;
        for (number, source) in self.sources.iter_mut().enumerate() {
            let PendingReports { found, failure } = source.inbox.take();
            if let Some(found) = found {
                self.registrar.metrics().discovery_polled(&source.name, "ok");
                self.registrar.metrics().discovery_succeeded(&source.name, SystemTime::now());
                if let Some(error) = source.error.take() {
                    is_changed = true;
                    info!(source = &*source.name, previous_error = error.as_str(), "discovery source responds again");
                }
                source.answered_at = Some(now);
                if source.problems != found.problems {
                    is_changed = true;
                    for problem in found.problems.iter() {
                        let (source, error) = (&*source.name, problem.as_str());
                        warn!(source, error, "discovery source has an unusable entry");
                    }
                    source.problems = found.problems;
                }
                is_changed |= self.reconciler.source_reported(number, found.targets, now);
            }
            if let Some(failure) = failure {
                self.registrar.metrics().discovery_polled(&source.name, "failed");
                if let Failure::TooMany(_) = failure {
                    self.registrar.metrics().limit_reached(Limit::DiscoveryTargets);
                }
                if source.error.as_deref() != Some(failure.text()) {
                    is_changed = true;
                    let error = failure.text();
                    error!(source = &*source.name, error, "discovery source failed; its registrations stay");
                }
                source.error = Some(failure.text().to_owned());
                self.reconciler.source_failed(number);
            }
        }
        is_changed
    }

    /// Carries out the reconciler's steps. Returns whether there were any.
    fn reconcile(&mut self) -> bool {
        let now = self.now();
        let steps = self.reconciler.steps(&self.registrar.registrations(), now);
        let has_steps = !steps.is_empty();
        let registered = |step: &Step| match step {
            Step::Register { registration, .. } => Some(registration.model.clone()),
            Step::Unregister(_) => None,
        };
        // The model stays while its only engine moves: a query then has an empty result, and no error.
        let models_registered_again: BTreeSet<_> = steps.iter().filter_map(registered).collect();
        for step in steps {
            if self.registrar.is_stopping() {
                break;
            }
            match step {
                Step::Unregister(rank) => {
                    let emptied = match models_registered_again.contains(&rank.model) {
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
        if self.reconciler.have_all_reported() {
            self.status.set_initial_ranks(self.registered());
        }
        self.publish();
        self.log_unregistered_targets();
        has_steps
    }

    fn register(&mut self, registration: Registration, source: &Arc<str>, now: Instant) {
        let rank = registration.rank_id();
        let endpoint = registration.options.endpoint.clone();
        // A test injects a panic by this model name.
        #[cfg(any(test, feature = "fault-injection"))]
        assert!(rank.model.model_name != "runner-fault", "a test asked for a failure");
        let result = self.registrar.register(Owner::Source(Arc::clone(source)), registration.clone());
        match &result {
            Ok(RegistrationOutcome::New) => {
                self.registrar.metrics().discovery_change("registered");
                log_rank!(debug, rank, endpoint = endpoint.as_str(), source = &**source, "discovery registered a rank");
            }
            Ok(RegistrationOutcome::Already) => {}
            Err(_) => self.registrar.metrics().discovery_change("refused"),
        }
        self.reconciler.record_attempt(&registration, result.map(drop), now);
    }

    fn registered(&self) -> Vec<RankId> {
        let owned = self.registrar.registrations().into_iter();
        owned.filter(|(_, owned)| matches!(owned.owner, Owner::Source(_))).map(|(rank, _)| rank).collect()
    }

    fn publish(&self) {
        let owned = self.registrar.registrations();
        let sources = self.sources.iter().enumerate().map(|(number, source)| {
            let outcomes = self.reconciler.outcomes(number, &owned);
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
                targets: outcomes.map(|(target, outcome)| TargetStatus::new(target, outcome)).collect(),
            };
            self.registrar.metrics().discovery_targets(&source.name, &status.counts());
            status
        });
        self.status.publish(sources.collect());
    }

    /// Logs each target that is not registered as its source names it, once for each state.
    fn log_unregistered_targets(&mut self) {
        let sources = self.status.sources();
        for (source, status) in self.sources.iter_mut().zip(sources) {
            let mut logged_states = BTreeMap::new();
            for target in status.targets {
                let key = target.rank;
                let is_new = source.logged_states.get(&key) != Some(&target.state);
                if let Some(reason) = target.reason.as_ref().filter(|_| is_new && target.state != TargetState::Leaving)
                {
                    let (source, state, endpoint) = (&*source.name, target.state.as_str(), target.endpoint.as_str());
                    log_rank!(
                        warn,
                        key,
                        endpoint,
                        source,
                        state,
                        reason = reason.as_str(),
                        "discovered rank is not registered as its source names it"
                    );
                }
                logged_states.insert(key, target.state);
            }
            source.logged_states = logged_states;
        }
    }
}

impl Steps for Runner {
    /// Waits for a report or the next check of the deadlines, then reconciles.
    fn step(&mut self, watch: &Arc<Watch>) -> ThreadStep {
        if self.registrar.is_stopping() {
            return ThreadStep::Ended;
        }
        let pause = match self.registrar.supervisor().clock() {
            Clock::System => self.poll_at.saturating_duration_since(self.now()),
            Clock::Simulated(_) => Duration::ZERO,
        };
        select! {
            recv(self.signals.stopped) -> _ => return ThreadStep::Ended,
            recv(self.signals.woken) -> wake => if wake.is_err() {
                // No source is left.
                if self.signals.stopped.try_recv() == Err(TryRecvError::Empty) {
                    error!("all discovery sources ended by a bug in Flash Indexer; registrations stay; restart the service and report it with the log");
                }
                return ThreadStep::Ended;
            },
            default(pause) => if self.now() < self.poll_at {
                return ThreadStep::Idle;
            }
        }
        watch.begin(None);
        // After a panic the next poll carries out the remaining steps.
        watch.attempt(|| self.poll());
        watch.end();
        self.poll_at = self.now() + TICK;
        ThreadStep::Worked
    }
}
