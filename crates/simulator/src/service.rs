//! One replica of the service: the real registry, decoders and writers, as steps of the simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_ingest::ListenerReport;
use flash_indexer_registry::{Indexer, IndexerOptions, RegistrationError, Restore, RestoredRank, Shadow};
use flash_indexer_sim::Random;
use flash_indexer_snapshot::{DumpEntry, DumpForm, DumpSink, DumpWriter, RankName, RankRecord, Rejection, read_dump};
use flash_indexer_telemetry::clock::SimulatedTime;
use flash_indexer_telemetry::metrics::{MetricNames, Metrics};
use flash_indexer_telemetry::supervision::{Stepper, Supervisor, ThreadKind};
use flash_indexer_types::hashes::HashForm;
use flash_indexer_types::{InstanceId, ModelKey, Owner, RankId, Registration, RegistrationOutcome};
use flash_indexer_wire::Start;
use parking_lot::Mutex;

use crate::action::RepairSource;
use crate::discovery::ServiceDiscovery;
use crate::engine::{Engine, EngineSpec};
use crate::network::{FIRST_PORT, Link, Links, engine_at, raise, transport};
use crate::plan::ServiceSpec;
use crate::prompts::block_size;

/// Steps after which threads that still have work are considered to loop forever.
const STEPS_MAX: usize = 200_000;
/// Stored, copied and removed blocks kept for explanations.
const HISTORY_BLOCKS: usize = 256;

/// A recovery of a starting service from a peer.
#[derive(Default)]
struct Recovery {
    held: BTreeSet<RankId>,
    dump: Option<PeerDump>,
}

/// A dump of a service.
pub(crate) struct PeerDump {
    pub(crate) bytes: Vec<u8>,
    /// Number of the last message that a rank in it may include, by the engine's number.
    pub(crate) last: BTreeMap<usize, u64>,
}

/// An instance that is being rebuilt.
pub(crate) struct Repair {
    pub(crate) shadow: Shadow,
    pub(crate) source: RepairSource,
    /// Whether its streams continue from the restored state, or from the start.
    pub(crate) is_resumed: bool,
    /// Number of the last message that a rank of the peer's dump may include, by the engine's number.
    pub(crate) last: BTreeMap<usize, u64>,
}

/// One replica of the service.
pub(crate) struct Service {
    pub(crate) indexer: Arc<Indexer>,
    supervisor: Arc<Supervisor>,
    /// State of the random choice of threads.
    choice: Arc<AtomicU64>,
    pub(crate) links: Links,
    /// Whether listeners that are opened are of an instance that is rebuilt.
    pub(crate) opens_shadows: Arc<AtomicBool>,
    recovery: Option<Recovery>,
    /// The instance that is being rebuilt.
    pub(crate) repair: Option<Repair>,
    /// Discovery of its engines; none if they are registered manually.
    pub(crate) discovery: Option<ServiceDiscovery>,
    /// Registered ranks, with the number of their engine.
    pub(crate) registered: BTreeMap<RankId, usize>,
    /// Engines with a rank that a dump has registered. Their streams may name ranks that the dump lacks.
    pub(crate) partly_registered: BTreeSet<usize>,
    /// Whether any rank was restored from a peer.
    pub(crate) has_imported: bool,
    /// Number of the last message that a rank restored from a peer may include, by the engine's number.
    pub(crate) imported: BTreeMap<usize, u64>,
    /// Engines with a rank that was ignored for a while.
    pub(crate) ignored: BTreeSet<usize>,
    /// Restarts of engines since the service started.
    pub(crate) engine_restarts: u64,
    /// Deliveries of each rank's stream that were dropped because a queue was full, as of the last check.
    pub(crate) drops: BTreeMap<RankId, u64>,
    /// Limit of the registered ranks.
    pub(crate) ranks_max: Option<usize>,
    /// Registrations that the limit refused.
    pub(crate) refused_ranks: u64,
}

/// The key of a model.
pub(crate) fn model(spec: &EngineSpec) -> ModelKey {
    ModelKey::new(format!("model-{}", spec.model), None)
}

/// Registrations of an engine's ranks.
pub(crate) fn registrations(number: usize, spec: &EngineSpec) -> Vec<Registration> {
    let (instance, host) = (InstanceId::number(spec.instance), format!("tcp://10.0.0.{}", spec.host));
    let registration = |&dp_rank| {
        let endpoint = format!("{host}:{}", FIRST_PORT + number);
        let mut registration = Registration::new(instance.clone(), model(spec), endpoint, block_size());
        registration.dp_rank = DpRank(dp_rank);
        registration.options.replay_endpoint = spec.has_replay.then(|| format!("{host}:{}", 2 * FIRST_PORT + number));
        registration
    };
    spec.dp_ranks.iter().map(registration).collect()
}

impl Service {
    /// Starts a service without registrations, with these links to the engines. The specification completes `options`.
    pub(crate) fn start(
        spec: &ServiceSpec,
        time: &Arc<SimulatedTime>,
        options: IndexerOptions,
        links: Vec<Link>,
    ) -> Self {
        let links: Links = Arc::new(Mutex::new(links));
        let choice = Arc::new(AtomicU64::new(0));
        let chosen = Arc::clone(&choice);
        let choose = move |count: usize| {
            let number = Random::new(chosen.fetch_add(1, Relaxed)).next();
            (number % count as u64) as usize
        };
        let opens_shadows = Arc::new(AtomicBool::new(false));
        let metrics = Arc::new(Metrics::new(MetricNames::Own));
        let supervisor = Supervisor::simulated(&metrics, Arc::clone(time), Box::new(choose));
        let options = IndexerOptions {
            writer_threads: spec.writers,
            shards: Some(spec.shards),
            decoder_threads: Some(spec.decoders),
            ingest_queue_bytes_max: Some(spec.queue_bytes_max),
            history_blocks_max: HISTORY_BLOCKS,
            ..options
        };
        let indexer = Indexer::start_with(options, &supervisor, |decoders| {
            let (transport, steps) = transport(&links, decoders, &opens_shadows);
            // The end of a simulated thread is not waited for.
            drop(supervisor.spawn_steps(ThreadKind::EngineSockets, None, || 0, steps)?);
            Ok(Box::new(transport))
        });
        Self {
            indexer: Arc::new(indexer.expect("a simulation needs nothing of the system")),
            supervisor,
            choice,
            links,
            opens_shadows,
            recovery: None,
            repair: None,
            discovery: None,
            registered: BTreeMap::new(),
            partly_registered: BTreeSet::new(),
            has_imported: false,
            imported: BTreeMap::new(),
            ignored: BTreeSet::new(),
            engine_restarts: 0,
            drops: BTreeMap::new(),
            ranks_max: None,
            refused_ranks: 0,
        }
    }

    /// Seeds the order of the threads.
    pub(crate) fn seed(&self, seed: u64) {
        self.choice.store(seed, Relaxed);
    }

    fn stepper(&self) -> &Stepper {
        self.supervisor.stepper().expect("the supervisor is simulated")
    }

    /// Runs at most this number of steps of the threads.
    pub(crate) fn run(&self, steps: usize) {
        for _ in 0..steps {
            if !self.stepper().step() {
                return;
            }
        }
    }

    /// Runs the threads until none has work.
    pub(crate) fn settle(&self) -> Result<(), String> {
        match (0..STEPS_MAX).any(|_| !self.stepper().step()) {
            true => Ok(()),
            false => Err(format!("threads still have work after {STEPS_MAX} steps")),
        }
    }

    /// Registers all ranks of an engine.
    pub(crate) fn register(&mut self, number: usize, spec: &EngineSpec) {
        for registration in registrations(number, spec) {
            let rank = registration.rank_id();
            // Its stream may have named it since the last check: the release of another rank applies messages.
            if self.partly_registered.contains(&number) && reports(self).contains_key(&rank) {
                self.registered.entry(rank.clone()).or_insert(number);
            }
            let is_new = !self.registered.contains_key(&rank);
            let shares_stream = self.registered.values().any(|&engine| engine == number);
            let refuses = self.refuses_ranks();
            let registered = self.indexer.register(registration);
            if self.is_refused(registered.as_ref().err(), is_new && refuses, number) {
                continue;
            }
            let is_registered_now = registered.is_ok_and(|outcome| outcome == RegistrationOutcome::New);
            assert_eq!(is_registered_now, is_new, "{rank} was registered before, or not");
            if is_new && shares_stream {
                // It may have been unregistered for a while, and its events were ignored.
                self.ignored.insert(number);
            }
            self.registered.insert(rank, number);
        }
    }

    /// Whether the service has as many ranks as its limit.
    fn refuses_ranks(&self) -> bool {
        self.ranks_max.is_some_and(|max| reports(self).len() >= max)
    }

    /// Whether the registration of an engine's rank was refused, as it must be.
    fn is_refused(&mut self, error: Option<&RegistrationError>, must_be: bool, engine: usize) -> bool {
        let is_refused = matches!(error, Some(RegistrationError::Tenant(_)));
        assert!(is_refused == error.is_some() && is_refused == must_be, "refused is {must_be}: {error:?}");
        if is_refused {
            self.record_refused(&[engine]);
        }
        is_refused
    }

    /// Records that ranks of these engines were refused. Their streams may name these ranks.
    fn record_refused(&mut self, engines: &[usize]) {
        self.refused_ranks += engines.len() as u64;
        self.partly_registered.extend(engines);
        self.ignored.extend(engines);
    }

    /// Starts the service's discovery of its engines. If the service must recover from a peer, discovery waits for the recovery.
    pub(crate) fn discover(&mut self, is_held: bool) {
        let discovery = self.discovery.insert(ServiceDiscovery::start(&self.indexer));
        if is_held {
            self.recovery = Some(Recovery::default());
            discovery.set_recovering(true);
        }
    }

    /// The service's discovery source names an engine at its present address.
    pub(crate) fn name(&mut self, number: usize, spec: &EngineSpec) {
        if let Some(discovery) = &mut self.discovery {
            discovery.name(number, registrations(number, spec));
        }
    }

    /// Reads the registrations that discovery has changed, and checks them if the threads have no work left.
    pub(crate) fn read_discovered(&mut self, is_settled: bool) -> Result<(), String> {
        let Some(discovery) = &mut self.discovery else { return Ok(()) };
        let owned = self.indexer.owned_ranks();
        self.registered =
            owned.iter().map(|(rank, owned)| (rank.clone(), engine_at(&owned.registration.options.endpoint))).collect();
        // The ranks of a stream are registered one after the other, and its events of the later ones may be ignored.
        let of_engine = |engine: usize| self.registered.values().filter(|&&of| of == engine).count();
        let shared = self.registered.values().copied().filter(|&engine| of_engine(engine) > 1);
        self.ignored.extend(shared);
        if is_settled { discovery.check(&owned) } else { Ok(()) }
    }

    /// Registers ranks before the service reads a peer's dump, as a starting service does.
    pub(crate) fn hold(&mut self, number: usize, spec: &EngineSpec) {
        self.recovery.get_or_insert_default();
        for registration in registrations(number, spec) {
            let rank = registration.rank_id();
            let refuses = self.refuses_ranks();
            let registered = self.indexer.register_configured(registration, Start::Paused);
            if self.is_refused(registered.err().as_ref(), refuses, number) {
                continue;
            }
            if let Some(recovery) = self.recovery.as_mut().filter(|_| self.indexer.is_held(&rank)) {
                recovery.held.insert(rank.clone());
            }
            self.registered.insert(rank, number);
        }
    }

    /// Unregisters one rank of an engine or all ranks of its instance.
    pub(crate) fn unregister(&mut self, spec: &EngineSpec, rank: Option<usize>) -> Result<(), String> {
        let dp_rank = rank.map(|rank| DpRank(spec.dp_ranks[rank]));
        let (instance, key) = (InstanceId::number(spec.instance), model(spec));
        let of = |rank: &RankId| {
            rank.instance == instance && rank.model == key && dp_rank.is_none_or(|dp_rank| dp_rank == rank.dp_rank)
        };
        let expected = self.registered.keys().filter(|rank| of(rank)).count();
        let unregistered = self.registered.extract_if(.., |rank, _| of(rank));
        for (_, engine) in unregistered {
            self.partly_registered.remove(&engine);
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.held.retain(|rank| !of(rank));
        }
        let unregistered = self.indexer.unregister(&instance, &key.model_name, Some(&key.tenant_id), dp_rank);
        match unregistered.ranks == expected && unregistered.is_forgotten {
            true => Ok(()),
            false => Err(format!("unregistering {expected} ranks of instance {instance} returned {unregistered:?}")),
        }
    }

    /// Adds a rank that the stream of an engine has named, if a dump has registered another one of it.
    pub(crate) fn add_named(&mut self, rank: &RankId, engines: &[Engine]) {
        let is_of = |&engine: &usize| {
            let spec = &engines[engine].spec;
            InstanceId::number(spec.instance) == rank.instance && spec.dp_ranks.contains(&rank.dp_rank.0)
        };
        if let Some(engine) = self.partly_registered.iter().copied().find(is_of) {
            self.registered.entry(rank.clone()).or_insert(engine);
        }
    }

    /// Whether the service has paused streams.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// Reads the dump of a peer, unless the peer itself is recovering: it then refuses.
    pub(crate) fn read_dump(&mut self, peer: &Self) {
        if let Some(recovery) = &mut self.recovery
            && !peer.is_recovering()
        {
            recovery.dump = Some(peer.dump());
        }
    }

    pub(crate) fn dump(&self) -> PeerDump {
        let mut writer = DumpWriter::start(Vec::new(), DumpForm::Lines, HashForm::Number).expect("a vector");
        for (key, block_size) in self.indexer.matching_models(None, None) {
            writer.model(&key, block_size.tokens()).expect("a vector");
            for (record, rank) in self.indexer.records(&key, None) {
                writer.rank(record, &rank).expect("a vector");
            }
        }
        let bytes = writer.finish().expect("a vector");
        // Messages were applied while the ranks were read one after the other.
        let mut dump = PeerDump { bytes, last: self.imported.clone() };
        for (rank, report) in reports(self) {
            if let (Some(&engine), Some(last)) = (self.registered.get(&rank), report.last_seq) {
                raise(&mut dump.last, engine, last);
            }
        }
        dump
    }

    /// Records that ranks were restored from a peer's dump.
    pub(crate) fn record_import(&mut self, last: &BTreeMap<usize, u64>) {
        self.has_imported = true;
        last.iter().for_each(|(&engine, &last)| raise(&mut self.imported, engine, last));
    }

    /// Restores the dump that was read, and releases the paused streams. A truncated dump is not restored, and the
    /// streams stay paused: a starting service then asks the next peer.
    pub(crate) fn recover(&mut self, is_cut: bool) -> Result<(), String> {
        let Some(Recovery { held, dump }) = self.recovery.take() else { return Ok(()) };
        if let Some(discovery) = &mut self.discovery {
            discovery.set_recovering(false);
        }
        let mut loader = DumpLoader {
            indexer: Arc::clone(&self.indexer),
            restore: Restore::new(Arc::clone(&self.indexer), held.clone()),
            held,
            registered: BTreeMap::new(),
            refused: Vec::new(),
        };
        let mut restored: BTreeMap<RankId, RestoredRank> = BTreeMap::new();
        if let Some(PeerDump { bytes, last }) = dump {
            let length = if is_cut { bytes.len() * 2 / 3 } else { bytes.len() };
            let read = read_dump(&bytes[..length], &mut loader);
            self.record_refused(&loader.refused);
            self.partly_registered.extend(loader.registered.values());
            self.registered.extend(std::mem::take(&mut loader.registered));
            match (read, is_cut) {
                (Ok(_), false) => {
                    restored = loader.restore.commit();
                    if !restored.is_empty() {
                        self.record_import(&last);
                    }
                }
                (Err(_), true) => {
                    drop(loader.restore);
                    self.recovery = Some(Recovery { held: loader.held, dump: None });
                    if let Some(discovery) = &mut self.discovery {
                        discovery.set_recovering(true);
                    }
                    return Ok(());
                }
                (Ok(_), true) => return Err("a dump that was cut off was restored".to_owned()),
                (Err(error), false) => return Err(format!("failed to restore a whole dump: {error}")),
            }
        }
        for rank in loader.held {
            let position = restored.remove(&rank);
            self.indexer.release_restored(&rank, position);
        }
        Ok(())
    }

    /// Indexes replaced after a panic.
    pub(crate) fn panics(&self) -> u64 {
        self.indexer.metrics().index_replacements()
    }

    /// Value of a counter or gauge, summed over all series whose labels contain `labels`.
    pub(crate) fn metric(text: &str, name: &str, labels: &str) -> u64 {
        let series = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let is_named = series.split('{').next()? == format!("flash_indexer_{name}");
            (is_named && series.contains(labels)).then(|| value.parse::<f64>().unwrap_or_default() as u64)
        });
        series.sum()
    }
}

impl Drop for Service {
    /// Models and listeners refer to each other until the listeners are unregistered.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.repair = None;
        if self.discovery.take().is_some() {
            // Its thread ends with a step, and the registry is dropped with it.
            let _ = self.settle();
        }
        // The last steps of discovery may have registered some.
        for report in self.indexer.instances(None, None) {
            let ModelKey { model_name, tenant_id } = &report.model;
            self.indexer.unregister(&report.instance, model_name, Some(tenant_id), None);
        }
    }
}

/// State of each registered rank.
pub(crate) fn reports(service: &Service) -> BTreeMap<RankId, ListenerReport> {
    let mut reports = BTreeMap::new();
    for instance in service.indexer.instances(None, None) {
        for (dp_rank, report) in instance.listeners {
            let rank = RankId { model: instance.model.clone(), instance: instance.instance.clone(), dp_rank };
            reports.insert(rank, report);
        }
    }
    reports
}

/// Restores a dump, and registers the ranks in it that are not registered yet.
struct DumpLoader {
    indexer: Arc<Indexer>,
    restore: Restore,
    held: BTreeSet<RankId>,
    registered: BTreeMap<RankId, usize>,
    /// Engines of the ranks that a limit refused.
    refused: Vec<usize>,
}

impl DumpLoader {
    /// Whether a rank is registered at another address of the same engine.
    fn has_moved(&self, rank: &RankId, endpoint: &str) -> bool {
        let owned = self.indexer.owned_ranks();
        let registered = owned.get(rank).map(|owned| owned.registration.options.endpoint.as_str());
        registered.is_some_and(|known| known != endpoint && engine_at(known) == engine_at(endpoint))
    }
}

impl DumpSink for DumpLoader {
    fn rank(&mut self, record: RankRecord) -> Result<(), Rejection> {
        if let Some(engine) = &record.engine {
            let mut registration = Registration::new(
                record.instance_id.clone(),
                record.key(),
                engine.endpoint.clone(),
                BlockSize::new(record.block_size).ok_or_else(|| Rejection("invalid block size 0".to_owned()))?,
            );
            registration.dp_rank = DpRank(record.dp_rank);
            registration.options.replay_endpoint = engine.replay_endpoint.clone();
            let rank = registration.rank_id();
            let number = engine_at(&engine.endpoint);
            match self.indexer.register_from_peer(registration, Owner::recovered(engine.source.as_deref())) {
                Ok(RegistrationOutcome::New) => {
                    self.registered.insert(rank.clone(), number);
                    if self.indexer.is_held(&rank) {
                        self.held.insert(rank.clone());
                        self.restore.hold(rank);
                    }
                }
                Ok(RegistrationOutcome::Already) => {}
                Err(error) => {
                    match &error {
                        RegistrationError::Tenant(_) => self.refused.push(number),
                        // The engine moved after an earlier dump, which was cut off, had registered the rank.
                        RegistrationError::Rank { .. } if self.has_moved(&rank, &engine.endpoint) => {}
                        other => return Err(Rejection(other.to_string())),
                    }
                    self.restore.skip_refused(&rank, &error)?;
                }
            }
        }
        self.restore.rank(record)
    }

    fn entry(&mut self, rank: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection> {
        self.restore.entry(rank, entry)
    }
}
