//! Discovery of one service: the real reconciler, with a source whose reports the simulation makes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use flash_indexer_discovery::{Discovery, Registrar, ReportedSource};
use flash_indexer_registry::Indexer;
use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_types::networks::EngineNetworks;
use flash_indexer_types::{EmptyModelPolicy, OwnedRank, Owner, RankId, Registration, RegistrationOutcome};

/// How long an engine stays registered after its source has stopped naming it.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum delay of a reconciler's step after its deadline: the interval at which deadlines are checked.
const STEP_WITHIN: Duration = Duration::from_millis(500);
/// Name of the source.
const SOURCE: &str = "simulated";

/// Discovery of one service.
pub(crate) struct ServiceDiscovery {
    _running: Discovery,
    source: ReportedSource,
    registrar: Arc<ServiceRegistrar>,
    /// Registrations of the engines that the source names, by the engine's number.
    named: BTreeMap<usize, Vec<Registration>>,
    /// Whether the source has failed since its last report.
    is_failing: bool,
    /// Ranks that were registered for the source when it failed.
    kept: BTreeSet<RankId>,
    /// When the recovery ended.
    recovered_at: Option<Instant>,
    /// Ranks that the reconciler has found absent, with the time at which it found them absent.
    absent: BTreeMap<RankId, Instant>,
}

impl ServiceDiscovery {
    /// Starts discovery without a report.
    pub(crate) fn start(indexer: &Arc<Indexer>) -> Self {
        let registrar =
            Arc::new(ServiceRegistrar { indexer: Arc::clone(indexer), is_recovering: AtomicBool::new(false) });
        let started = Discovery::start_reported(SOURCE, GRACE, Arc::clone(&registrar) as Arc<dyn Registrar>);
        let (running, source) = started.expect("a simulation needs nothing of the system");
        Self {
            _running: running,
            source,
            registrar,
            named: BTreeMap::new(),
            is_failing: false,
            kept: BTreeSet::new(),
            recovered_at: None,
            absent: BTreeMap::new(),
        }
    }

    /// The source names an engine with these registrations.
    pub(crate) fn name(&mut self, engine: usize, registrations: Vec<Registration>) {
        self.absent.retain(|rank, _| registrations.iter().all(|registration| registration.rank_id() != *rank));
        self.named.insert(engine, registrations);
        self.report();
    }

    /// The source no longer names an engine.
    pub(crate) fn leave_out(&mut self, engine: usize) {
        self.named.remove(&engine);
        self.report();
    }

    /// The source reports the engines that it names.
    pub(crate) fn report(&mut self) {
        self.is_failing = false;
        self.kept.clear();
        self.source.found(self.named.values().flatten().cloned());
    }

    /// The source fails.
    pub(crate) fn fail(&mut self) {
        self.is_failing = true;
        let owned = self.registrar.registrations().into_iter();
        let of_source = owned.filter(|(_, owned)| owned.owner == Owner::Source(SOURCE.into()));
        self.kept.extend(of_source.map(|(rank, _)| rank));
        self.source.failed("it does not respond".to_owned());
    }

    /// Records that a recovery begins or ends. Discovery waits meanwhile.
    pub(crate) fn set_recovering(&mut self, is_recovering: bool) {
        self.registrar.is_recovering.store(is_recovering, Relaxed);
        self.recovered_at = (!is_recovering).then(|| self.now());
    }

    fn now(&self) -> Instant {
        self.registrar.supervisor().clock().now()
    }

    /// Checks the registrations of a service whose threads have no work left: the ranks that the source names, and
    /// ranks that it last named less than the grace period ago. A failing source unregisters none.
    pub(crate) fn check(&mut self, owned: &BTreeMap<RankId, OwnedRank>) -> Result<(), String> {
        let now = self.now();
        let is_recovering = self.registrar.is_recovering();
        if is_recovering || self.is_failing || self.recovered_at.is_some_and(|at| now < at + STEP_WITHIN) {
            // Grace periods of a failing source do not end.
            self.absent.clear();
            if let Some(rank) = self.kept.iter().find(|rank| !owned.contains_key(rank)) {
                return Err(format!("{rank} is not registered any more, and its source fails"));
            }
            return Ok(());
        }
        let named: BTreeMap<_, _> =
            self.named.values().flatten().map(|registration| (registration.rank_id(), registration)).collect();
        for (rank, registration) in &named {
            match owned.get(rank) {
                Some(owned) if owned.registration == **registration && owned.owner == Owner::Source(SOURCE.into()) => {}
                other => {
                    return Err(format!("its source names {rank} at {}: {other:?}", registration.options.endpoint));
                }
            }
        }
        self.absent.retain(|rank, _| owned.contains_key(rank));
        for rank in owned.keys().filter(|rank| !named.contains_key(rank)) {
            let since = *self.absent.entry(rank.clone()).or_insert(now);
            if now >= since + GRACE + STEP_WITHIN {
                return Err(format!("{rank} is registered, and its source has not named it for {:?}", now - since));
            }
        }
        Ok(())
    }
}

/// The registry of a service as the registrar of its discovery.
struct ServiceRegistrar {
    indexer: Arc<Indexer>,
    is_recovering: AtomicBool,
}

impl Registrar for ServiceRegistrar {
    fn is_stopping(&self) -> bool {
        self.indexer.is_stopping()
    }

    fn is_recovering(&self) -> bool {
        self.is_recovering.load(Relaxed)
    }

    fn registrations(&self) -> BTreeMap<RankId, OwnedRank> {
        self.indexer.owned_ranks()
    }

    fn registrations_version(&self) -> u64 {
        self.indexer.registrations_changed()
    }

    fn register(&self, owner: Owner, registration: Registration) -> Result<RegistrationOutcome, String> {
        self.indexer.register_for(owner, registration).map_err(|error| error.to_string())
    }

    fn unregister(&self, rank: &RankId, policy: EmptyModelPolicy) {
        self.indexer.unregister_owned(rank, policy);
    }

    fn engine_networks(&self) -> &EngineNetworks {
        self.indexer.engine_networks()
    }

    fn supervisor(&self) -> &Arc<Supervisor> {
        self.indexer.supervisor()
    }
}
