//! The whole service without HTTP: who is registered, and what the fleet holds.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use flash_indexer_core::designs::RadixTree;
use flash_indexer_core::hashing::{BlockSize, HashSpace, local_hashes};
use flash_indexer_core::{
    BlockEvent, DpRank, LocalHash, MatchScores, PerTier, RankMatch, RankSize, WorkerId, WorkerRank,
};
use parking_lot::{Mutex, RwLock};

use crate::answer::{Answer, QueryOptions, RankAnswer};
use crate::ingest::{ConnectError, Connection, Listener, ListenerOptions, ListenerReport, Sockets, Trust, Writers};
use crate::instance::{InstanceId, ModelKey};
use crate::metrics::Metrics;
use crate::model::{Instance, Model, Windows};

/// What an indexer is made with.
#[derive(Debug, Clone)]
pub struct IndexerOptions {
    /// Threads that write to indexes; each model belongs to one of them.
    pub writer_threads: usize,
    /// Pairs of model and tenant that may be registered.
    pub models_max: usize,
    /// Ranks that may be registered.
    pub listeners_max: usize,
}

impl Default for IndexerOptions {
    fn default() -> Self {
        Self { writer_threads: 4, models_max: 1_024, listeners_max: 16_384 }
    }
}

/// A rank of an engine that asks to be indexed.
#[derive(Debug, Clone)]
pub struct Registration {
    /// The engine instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: DpRank,
    /// Where it publishes: `tcp://host:port` or `ipc://path`.
    pub endpoint: String,
    /// Where it replays missed messages.
    pub replay_endpoint: Option<String>,
    /// Which index it belongs to.
    pub model: ModelKey,
    /// Tokens in its blocks.
    pub block_size: BlockSize,
    /// Adapter of its blocks that name none.
    pub lora_name: Option<String>,
    /// Its kind, for people.
    pub engine: Option<&'static str>,
}

/// What a registration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// The rank is listened to from now on.
    New,
    /// It already was, in the same way.
    Already,
}

/// A registration was refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RegistrationError {
    /// The endpoint cannot be listened to.
    #[error("{0}")]
    Endpoint(String),
    /// The model's index has blocks of another size.
    #[error(
        "{model} has blocks of {existing} tokens, not {asked}: use block_size {existing}, or another model_name or tenant_id"
    )]
    BlockSize {
        /// The model.
        model: ModelKey,
        /// Size of its blocks, in tokens.
        existing: u32,
        /// Size asked for, in tokens.
        asked: u32,
    },
    /// The rank listens to something else.
    #[error("rank {dp_rank} of instance {instance} is already registered with {existing}: unregister it first")]
    Rank {
        /// The instance.
        instance: InstanceId,
        /// Its rank.
        dp_rank: DpRank,
        /// What it was registered with.
        existing: String,
    },
    /// A bound is reached.
    #[error("at most {max} {what} can be registered: unregister some, or raise the limit")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// The bound.
        max: usize,
    },
    /// The service cannot take it now.
    #[error("{0}")]
    Unavailable(String),
}

/// A query cannot be answered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QueryError {
    /// Nobody has registered for this model and tenant.
    #[error("no instance is registered for model {:?} and tenant {:?}: register one with POST /register, or see GET /workers", .0.model_name, .0.tenant_id)]
    UnknownModel(ModelKey),
}

/// What was taken out of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unregistered {
    /// Ranks that are listened to no more; none if nothing fitted.
    pub ranks: usize,
}

/// An instance and its listeners.
#[derive(Debug, Clone)]
pub(crate) struct InstanceReport {
    pub(crate) instance: InstanceId,
    pub(crate) model: ModelKey,
    pub(crate) block_size: BlockSize,
    pub(crate) listeners: BTreeMap<DpRank, ListenerReport>,
}

/// What one rank holds, as events.
pub(crate) struct RankDump {
    pub(crate) instance: InstanceId,
    pub(crate) dp_rank: DpRank,
    pub(crate) events: Vec<BlockEvent>,
}

/// Sizes of the whole service.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) models: usize,
    pub(crate) instances: usize,
    pub(crate) held_blocks: usize,
}

/// Registered engines, their indexes and the threads that feed them. Shared by every request.
///
/// # Consistency
///
/// A query sees each event of a rank entirely or not at all, and each model's events in the order in
/// which its writer applied them. Registering and unregistering are complete when the call returns.
pub struct Indexer {
    options: IndexerOptions,
    models: RwLock<BTreeMap<ModelKey, Arc<Model>>>,
    /// Held while registrations change, so that checks and changes are one step.
    registering: Mutex<()>,
    sockets: Sockets,
    writers: Arc<Writers>,
    metrics: Arc<Metrics>,
    next_id: AtomicU64,
    next_writer: AtomicUsize,
}

impl std::fmt::Debug for Indexer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Indexer").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Indexer {
    /// An indexer that nobody is registered with.
    ///
    /// # Errors
    ///
    /// When its threads cannot be started.
    pub fn start(options: IndexerOptions) -> std::io::Result<Self> {
        let metrics = Arc::new(Metrics::default());
        let writers = Arc::new(Writers::start(options.writer_threads.max(1), &metrics)?);
        Ok(Self {
            options,
            models: RwLock::default(),
            registering: Mutex::default(),
            sockets: Sockets::new(Arc::clone(&writers)),
            writers,
            metrics,
            next_id: AtomicU64::new(1),
            next_writer: AtomicUsize::new(0),
        })
    }

    /// Closes every socket, applies what was received, and ends all threads. Queries still work.
    pub fn stop(&self) {
        let _registering = self.registering.lock();
        self.sockets.stop();
        self.writers.stop();
    }

    /// Listens to a rank from now on.
    ///
    /// # Errors
    ///
    /// When the endpoint is none, or contradicts what is registered.
    pub fn register(&self, registration: Registration) -> Result<Registered, RegistrationError> {
        check_endpoint(&registration.endpoint)?;
        if let Some(replay) = &registration.replay_endpoint {
            check_endpoint(replay)?;
        }
        let _registering = self.registering.lock();
        let existing = self.models.read().get(&registration.model).cloned();
        if let Some(model) = &existing {
            let (size, asked) = (model.block_size, registration.block_size);
            if size != asked {
                let (existing, asked) = (size.tokens(), asked.tokens());
                return Err(RegistrationError::BlockSize { model: registration.model, existing, asked });
            }
        } else if self.models.read().len() >= self.options.models_max {
            return Err(RegistrationError::TooMany { what: "models", max: self.options.models_max });
        }
        let options = ListenerOptions {
            endpoint: registration.endpoint,
            replay_endpoint: registration.replay_endpoint,
            lora_name: registration.lora_name.filter(|name| !name.is_empty()),
            engine: registration.engine,
        };
        let dp_rank = registration.dp_rank;
        if let Some(model) = &existing
            && let Some(listener) =
                model.instances.read().get(&registration.instance).and_then(|found| found.listeners.get(&dp_rank))
        {
            if listener.options == options {
                return Ok(Registered::Already);
            }
            let existing = if listener.options.endpoint == options.endpoint {
                format!("{} but another replay_endpoint, lora_name or engine", listener.options.endpoint)
            } else {
                listener.options.endpoint.clone()
            };
            return Err(RegistrationError::Rank { instance: registration.instance, dp_rank, existing });
        }
        if self.listener_count() >= self.options.listeners_max {
            return Err(RegistrationError::TooMany { what: "ranks", max: self.options.listeners_max });
        }
        let model = existing
            .unwrap_or_else(|| self.new_model(&registration.model, registration.block_size, options.lora_name.clone()));
        let worker = model.instances.read().get(&registration.instance).map(|instance| instance.worker);
        let worker = worker.unwrap_or_else(|| WorkerId(self.new_id()));
        let listener = Arc::new(Listener::new(self.new_id(), Arc::clone(&model), worker, dp_rank, options));
        self.sockets.open(Arc::clone(&listener)).map_err(|error| match error {
            ConnectError::Endpoint { .. } => RegistrationError::Endpoint(error.to_string()),
            ConnectError::Thread(_) | ConnectError::Stopping => RegistrationError::Unavailable(error.to_string()),
        })?;
        let mut instances = model.instances.write();
        let instance =
            instances.entry(registration.instance).or_insert_with(|| Instance { worker, listeners: BTreeMap::new() });
        instance.listeners.insert(dp_rank, listener);
        drop(instances);
        self.models.write().entry(registration.model).or_insert(model);
        Ok(Registered::New)
    }

    fn new_model(&self, key: &ModelKey, block_size: BlockSize, lora_name: Option<String>) -> Arc<Model> {
        Arc::new(Model {
            key: key.clone(),
            block_size,
            lora_name,
            index: RwLock::new(Box::new(RadixTree::default())),
            instances: RwLock::default(),
            windows: Windows::default(),
            writer: self.next_writer.fetch_add(1, Ordering::Relaxed) % self.writers.count(),
        })
    }

    fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn listener_count(&self) -> usize {
        let models = self.models.read();
        let counts = models.values().flat_map(|model| {
            model.instances.read().values().map(|instance| instance.listeners.len()).collect::<Vec<_>>()
        });
        counts.sum()
    }

    /// Stops listening to an instance, or to one of its ranks, and forgets what it holds; in one
    /// tenant, or in all tenants of the model. A model goes with its last instance, so that it can
    /// be registered again with another block size.
    pub fn unregister(
        &self,
        instance: &InstanceId,
        model_name: &str,
        tenant_id: Option<&str>,
        dp_rank: Option<DpRank>,
    ) -> Unregistered {
        let _registering = self.registering.lock();
        let models: Vec<Arc<Model>> = self.models_of(Some(model_name), tenant_id);
        let mut ranks = 0;
        for model in models {
            let mut closed = Vec::new();
            {
                let mut instances = model.instances.write();
                let Entry::Occupied(mut entry) = instances.entry(instance.clone()) else { continue };
                match dp_rank {
                    Some(dp_rank) => closed.extend(entry.get_mut().listeners.remove(&dp_rank)),
                    None => closed.extend(std::mem::take(&mut entry.get_mut().listeners).into_values()),
                }
                if entry.get().listeners.is_empty() {
                    entry.remove();
                }
            }
            ranks += closed.len();
            for listener in closed {
                self.sockets.close(&listener);
            }
            if model.instances.read().is_empty() {
                self.models.write().remove(&model.key);
            }
        }
        Unregistered { ranks }
    }

    fn models_of(&self, model_name: Option<&str>, tenant_id: Option<&str>) -> Vec<Arc<Model>> {
        let models = self.models.read();
        let wanted = models.values().filter(|model| {
            model_name.is_none_or(|name| name == model.key.model_name)
                && tenant_id.is_none_or(|tenant| tenant == model.key.tenant_id)
        });
        wanted.cloned().collect()
    }

    fn model(&self, key: &ModelKey) -> Result<Arc<Model>, QueryError> {
        self.models.read().get(key).cloned().ok_or_else(|| QueryError::UnknownModel(key.clone()))
    }

    /// What the fleet holds of a prompt.
    ///
    /// # Errors
    ///
    /// When nobody is registered for the model and tenant.
    pub fn query_tokens(
        &self,
        key: &ModelKey,
        tokens: &[u32],
        lora_name: Option<&str>,
        cache_salt: Option<&str>,
        options: QueryOptions,
    ) -> Result<Answer, QueryError> {
        let model = self.model(key)?;
        let space = HashSpace::new(lora_name.or(model.lora_name.as_deref()), cache_salt);
        let windows = model.windows.in_use();
        let queries: Vec<_> = windows.map(|window| local_hashes(space, tokens, model.block_size, window)).collect();
        Ok(model.answer(queries.iter().map(Vec::as_slice), options))
    }

    /// What the fleet holds of a prompt given as local hashes of its blocks.
    ///
    /// # Errors
    ///
    /// When nobody is registered for the model and tenant.
    pub fn query_hashes(
        &self,
        key: &ModelKey,
        locals: &[LocalHash],
        options: QueryOptions,
    ) -> Result<Answer, QueryError> {
        Ok(self.model(key)?.answer([locals], options))
    }

    /// The block size of a model.
    ///
    /// # Errors
    ///
    /// When nobody is registered for the model and tenant.
    pub fn block_size(&self, key: &ModelKey) -> Result<BlockSize, QueryError> {
        Ok(self.model(key)?.block_size)
    }

    /// Every registered instance, by model and then by instance.
    pub(crate) fn instances(&self, model_name: Option<&str>, tenant_id: Option<&str>) -> Vec<InstanceReport> {
        let mut reports = Vec::new();
        for model in self.models_of(model_name, tenant_id) {
            for (instance, found) in model.instances.read().iter() {
                reports.push(InstanceReport {
                    instance: instance.clone(),
                    model: model.key.clone(),
                    block_size: model.block_size,
                    listeners: found.listeners.iter().map(|(&rank, listener)| (rank, listener.report())).collect(),
                });
            }
        }
        reports
    }

    /// Models that fit, with their block sizes.
    pub(crate) fn dumpable(&self, model_name: Option<&str>, tenant_id: Option<&str>) -> Vec<(ModelKey, BlockSize)> {
        let models = self.models_of(model_name, tenant_id).into_iter();
        models.map(|model| (model.key.clone(), model.block_size)).collect()
    }

    /// What each rank of a model holds, one rank at a time: each at one moment, with the index
    /// unlocked in between, and no more than one rank in memory.
    pub(crate) fn dump(&self, key: &ModelKey) -> impl Iterator<Item = RankDump> + use<> {
        let model = self.models.read().get(key).cloned();
        let ranks = model.as_ref().map(|model| model.ranks()).unwrap_or_default();
        ranks.into_iter().filter_map(move |(instance, rank)| {
            let events = model.as_ref()?.index.read().dump(rank);
            Some(RankDump { instance, dp_rank: rank.dp_rank, events })
        })
    }

    /// Whether every listener in `asked` is connected; else those that are not.
    pub(crate) fn unconnected(&self, asked: &[(ModelKey, InstanceId, DpRank)]) -> Vec<String> {
        let models = self.models.read();
        let missing = asked.iter().filter(|(key, instance, dp_rank)| {
            let Some(model) = models.get(key) else { return false };
            let instances = model.instances.read();
            let listener = instances.get(instance).and_then(|instance| instance.listeners.get(dp_rank));
            listener.is_some_and(|listener| listener.connection() != Connection::Connected)
        });
        missing.map(|(key, instance, dp_rank)| format!("instance {instance} rank {dp_rank} of {key}")).collect()
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for model in self.models_of(None, None) {
            totals.models += 1;
            totals.instances += model.instances.read().len();
            totals.held_blocks += model.held_blocks();
        }
        totals
    }

    /// Blocks held by all ranks of all models.
    #[must_use]
    pub fn held_blocks(&self) -> usize {
        self.totals().held_blocks
    }

    /// Events applied since the start.
    #[must_use]
    pub fn events_applied(&self) -> u64 {
        self.metrics.events_applied()
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Model {
    /// Every rank that is registered or that the index has seen of a registered instance, with its
    /// name.
    fn ranks(&self) -> Vec<(InstanceId, WorkerRank)> {
        let instances = self.instances.read();
        let by_worker: BTreeMap<WorkerId, &InstanceId> =
            instances.iter().map(|(name, instance)| (instance.worker, name)).collect();
        let registered = instances.iter().flat_map(|(name, instance)| {
            let worker = instance.worker;
            instance.listeners.keys().map(move |&dp_rank| (name.clone(), WorkerRank { worker, dp_rank }))
        });
        let indexed = self.index.read().ranks().into_iter();
        let indexed = indexed.filter_map(|rank| Some((InstanceId::clone(by_worker.get(&rank.worker)?), rank)));
        let mut ranks: Vec<_> = registered.chain(indexed).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    fn held_blocks(&self) -> usize {
        let index = self.index.read();
        index.ranks().into_iter().map(|rank| index.size(rank).blocks).sum()
    }

    /// The answer for every rank; of several queries the deepest match counts.
    fn answer<'q>(&self, queries: impl IntoIterator<Item = &'q [LocalHash]>, options: QueryOptions) -> Answer {
        let (found, seen) = {
            let index = self.index.read();
            let found: Vec<MatchScores> = queries.into_iter().map(|query| index.find(query)).collect();
            let seen: Vec<(WorkerRank, RankSize)> =
                index.ranks().into_iter().map(|rank| (rank, index.size(rank))).collect();
            (found, seen)
        };
        let mut ranks: BTreeMap<WorkerRank, (PerTier<u32>, RankSize)> = BTreeMap::new();
        for (rank, size) in seen {
            ranks.insert(rank, (PerTier::default(), size));
        }
        for RankMatch { rank, blocks } in found.into_iter().flat_map(|scores| scores.ranks) {
            let (deepest, _) = ranks.entry(rank).or_default();
            for (deepest, blocks) in deepest.0.iter_mut().zip(blocks.0) {
                *deepest = blocks.max(*deepest);
            }
        }
        Answer::of(self.name_ranks(&ranks), options)
    }

    /// Puts names to what the index says; ranks without a registered instance are left out.
    fn name_ranks(&self, found: &BTreeMap<WorkerRank, (PerTier<u32>, RankSize)>) -> Vec<RankAnswer> {
        let block_tokens = u64::from(self.block_size.tokens());
        let mut answers = Vec::new();
        for (name, instance) in self.instances.read().iter() {
            let every_rank = |dp_rank| WorkerRank { worker: instance.worker, dp_rank };
            let seen = found.range(every_rank(DpRank(0))..=every_rank(DpRank(u32::MAX)));
            let mut ranks: BTreeMap<DpRank, (PerTier<u32>, RankSize)> =
                instance.listeners.keys().map(|&dp_rank| (dp_rank, Default::default())).collect();
            ranks.extend(seen.map(|(rank, found)| (rank.dp_rank, *found)));
            // A rank that only batches name is as trustworthy as the streams it can have come by.
            let worst = instance.listeners.values().map(|listener| listener.trust()).max();
            for (dp_rank, (blocks, size)) in ranks {
                let own = instance.listeners.get(&dp_rank).map(|listener| listener.trust());
                answers.push(RankAnswer {
                    instance: name.clone(),
                    dp_rank,
                    tokens: PerTier(blocks.0.map(|blocks| u64::from(blocks) * block_tokens)),
                    blocks_held: size.blocks,
                    trust: own.or(worst).unwrap_or(Trust::Cold),
                });
            }
        }
        answers
    }
}

/// Catches what ZeroMQ would accept without complaint and never connect.
fn check_endpoint(endpoint: &str) -> Result<(), RegistrationError> {
    let bad = |why: &str| {
        Err(RegistrationError::Endpoint(format!(
            "bad endpoint {endpoint:?}: {why}; give an address such as tcp://host:5557 or ipc:///path"
        )))
    };
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        return if path.is_empty() { bad("the path is empty") } else { Ok(()) };
    }
    let Some(address) = endpoint.strip_prefix("tcp://") else {
        return bad("it starts with neither tcp:// nor ipc://");
    };
    let Some((host, port)) = address.rsplit_once(':') else { return bad("there is no port") };
    if host.is_empty() || host.contains('*') || port.contains('*') {
        return bad("the host or port of the engine is missing, * is only for the engine itself");
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => bad("the port is not a number from 1 to 65535"),
    }
}
