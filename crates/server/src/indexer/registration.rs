//! Engines come and go.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use flash_indexer_core::designs::BoundedError;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, RemovedCopies, SharedIndex, WorkerId};
use flash_indexer_wire::{Start, StreamPosition};
use parking_lot::RwLock;

use super::cleanup::Pending;
use super::handover::listener;
use super::{Indexer, Keeper, RankId};
use crate::endpoints::{EndpointError, check_endpoint, is_ipc};
use crate::explain::{Departure, History, SeenSpaces};
use crate::ingest::{ConnectError, Delivery, Leftover, Listener, ListenerOptions, ListenerState, Position, is_bound};
use crate::instance::{InstanceId, ModelKey};
use crate::logs::log_rank;
use crate::metrics::{Bound, ModelCounts};
use crate::model::{Instance, Model, ReplaceableIndex, Windows};
use crate::names::{NameError, NameField, check_names};
use crate::remembered::StreamName;
use crate::shared::SharedRanks;

/// A rank of an engine that asks to be indexed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The engine instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: DpRank,
    /// Where it publishes: `tcp://host:port` or `ipc://path`; `bound` if it connects to this service.
    pub endpoint: String,
    /// Where it replays missed messages.
    pub replay_endpoint: Option<String>,
    /// Which index it belongs to.
    pub model: ModelKey,
    /// Tokens in its blocks.
    pub block_size: BlockSize,
    /// Adapter of its blocks that name none.
    pub lora_name: Option<String>,
    /// Its kind, which says how its messages are read; none reads what fits.
    pub engine: Option<&'static str>,
    /// What its removals mean.
    pub removed_copies: RemovedCopies,
    /// Whether its requests carry keys beside their tokens that its events do not, as SGLang's `extra_key`: its ranks
    /// are never exact then.
    pub extra_keys: bool,
}

impl Registration {
    /// Refuses names and endpoints that are too long.
    pub(crate) fn check_names(&self) -> Result<(), NameError> {
        self.model.check()?;
        check_names([
            (NameField::Endpoint, Some(&self.endpoint)),
            (NameField::ReplayEndpoint, self.replay_endpoint.as_deref()),
            (NameField::LoraName, self.lora_name.as_deref()),
        ])
    }
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
    /// A name is too long.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The endpoint is a path of this machine, or its address is one that no engine may have.
    #[error("{0}")]
    Address(String),
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
    /// The bound of memory leaves too little for it.
    #[error("{model} would be one of {models} models that share --memory-max: {error}; raise it, or unregister some")]
    Memory {
        /// The model.
        model: ModelKey,
        /// Models with it.
        models: usize,
        /// Why its index cannot be made.
        error: BoundedError,
    },
    /// The service cannot take it now.
    #[error("{0}")]
    Unavailable(String),
}

/// What becomes of a model when its last instance leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmptiedModel {
    /// It goes too.
    Goes,
    /// It stays known for a registration that comes next, and goes if that is refused.
    AwaitsTheNext,
}

/// Whether a registration may name a path of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IpcPaths {
    /// The operator named it on the command line.
    Allowed,
    /// Only where the options say so.
    AsConfigured,
}

impl From<EndpointError> for RegistrationError {
    fn from(error: EndpointError) -> Self {
        match error {
            EndpointError::Malformed { .. } => Self::Endpoint(error.to_string()),
            EndpointError::Address { .. } | EndpointError::Ipc { .. } => Self::Address(error.to_string()),
        }
    }
}

/// What was taken out of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unregistered {
    /// Ranks that are listened to no more; none if nothing fitted.
    pub ranks: usize,
    /// Whether what they held is forgotten already. If not, it is in no answer and is forgotten behind the call.
    pub is_forgotten: bool,
}

impl Indexer {
    /// Listens to a rank from now on.
    ///
    /// # Errors
    ///
    /// When the endpoint is none, or contradicts what is registered.
    pub fn register(&self, registration: Registration) -> Result<Registered, RegistrationError> {
        self.give_way(&registration);
        self.register_from(registration, Start::AtOnce, Keeper::Hand)
    }

    /// Listens to a rank that the operator named on the command line. Only there is an `ipc://` endpoint accepted
    /// without [`IndexerOptions::allow_ipc`](super::IndexerOptions::allow_ipc).
    ///
    /// # Errors
    ///
    /// As [`Indexer::register`].
    pub(crate) fn register_configured(
        &self,
        registration: Registration,
        start: Start,
    ) -> Result<Registered, RegistrationError> {
        self.give_way(&registration);
        self.register_checked(registration, start, Keeper::Hand, IpcPaths::Allowed)
    }

    /// Listens to a rank from now on for somebody, who may end that unless it was asked for by hand.
    ///
    /// # Errors
    ///
    /// As [`Indexer::register`].
    pub(crate) fn register_for(
        &self,
        keeper: Keeper,
        registration: Registration,
    ) -> Result<Registered, RegistrationError> {
        self.register_from(registration, Start::AtOnce, keeper)
    }

    pub(super) fn register_from(
        &self,
        registration: Registration,
        start: Start,
        keeper: Keeper,
    ) -> Result<Registered, RegistrationError> {
        self.register_checked(registration, start, keeper, IpcPaths::AsConfigured)
    }

    fn register_checked(
        &self,
        registration: Registration,
        start: Start,
        keeper: Keeper,
        ipc: IpcPaths,
    ) -> Result<Registered, RegistrationError> {
        registration.check_names().inspect_err(|_| self.metrics.bound(Bound::Names))?;
        self.check_endpoints(&registration, ipc)?;
        let mut pending = Pending::default();
        let registered = {
            let _registering = self.registering.lock();
            let registered = self.listen(registration.clone(), start, &mut pending);
            log_registration(&registration, &keeper, &registered);
            if registered.is_ok() {
                self.keepers.note(keeper, registration);
            } else if let Some(model) = { self.models.read().get(&registration.model).cloned() } {
                // One that was kept for this rank, or made for it.
                self.forget_if_empty(&model);
            }
            registered
        };
        // A stream that is still busy with it goes on behind the call.
        self.wait(pending);
        registered
    }

    /// Refuses endpoints that are not dialled.
    fn check_endpoints(&self, registration: &Registration, ipc: IpcPaths) -> Result<(), RegistrationError> {
        let Registration { endpoint, replay_endpoint, .. } = registration;
        let dialled = Some(endpoint).filter(|endpoint| !is_bound(endpoint)).into_iter().chain(replay_endpoint);
        for endpoint in dialled {
            let is_allowed = !is_ipc(endpoint) || ipc == IpcPaths::Allowed || self.options.allow_ipc;
            let checked = check_endpoint(endpoint).and_then(|()| match is_allowed {
                true => Ok(()),
                false => Err(EndpointError::Ipc { endpoint: endpoint.clone() }),
            });
            if let Err(EndpointError::Address { .. } | EndpointError::Ipc { .. }) = &checked {
                self.metrics.bound(Bound::Addresses);
            }
            checked?;
        }
        Ok(())
    }

    /// Registers while nobody else does.
    fn listen(
        &self,
        registration: Registration,
        start: Start,
        pending: &mut Pending,
    ) -> Result<Registered, RegistrationError> {
        let Registration { instance, dp_rank, endpoint, replay_endpoint, model: key, block_size, .. } = registration;
        let endpoint = self.resolve_endpoint(endpoint)?;
        let options = ListenerOptions {
            endpoint,
            replay_endpoint,
            lora_name: registration.lora_name.filter(|name| !name.is_empty()),
            engine: registration.engine,
            removed_copies: registration.removed_copies,
            extra_keys: registration.extra_keys,
        };
        if options.is_bound() {
            self.check_one_tenant(&key, &instance, dp_rank)?;
        }
        let model = self.model_for(&key, block_size)?;
        let known = model.instances.read().get(&instance).map(|found| (found.worker, found.listeners.clone()));
        let is_from_dump = known.as_ref().is_some_and(|(_, listeners)| listeners.is_empty());
        let (worker, listeners) = known.unwrap_or_else(|| (WorkerId(self.new_id()), BTreeMap::new()));
        if let Some(listener) = listeners.get(&dp_rank) {
            return match listener.options == options {
                true => Ok(Registered::Already),
                false => Err(contradiction(instance, dp_rank, &listener.options, &options)),
            };
        }
        if self.listener_count() >= self.options.listeners_max {
            self.metrics.bound(Bound::Listeners);
            return Err(RegistrationError::TooMany { what: "ranks", max: self.options.listeners_max });
        }
        // Ranks that share an endpoint share its stream: listened to twice, every block would count twice.
        // Over the bound socket each has its own.
        let shared = listeners.values().find(|listener| listener.options == options && !options.is_bound());
        let shared = shared.map(Arc::clone);
        let is_shared = shared.is_some();
        let listener = shared.unwrap_or_else(|| {
            let name = StreamName::new(key.clone(), instance.clone(), dp_rank, &options);
            let decoder = match options.is_bound() {
                true => self.decoders.of_pod(&instance),
                false => self.decoders.assign(),
            };
            let state = ListenerState::new(&options);
            Arc::new(Listener {
                id: self.new_id(),
                model: Arc::clone(&model),
                instance: instance.clone(),
                worker,
                dp_rank,
                options,
                start: if is_from_dump { Start::Held } else { start },
                decoder,
                remembered: self.remembered.lock().recall(&name),
                state,
            })
        });
        if listener.start == Start::Held && (start == Start::Held || is_from_dump) {
            listener.hold().hold(dp_rank);
        }
        // Before the first message, which may name further ranks.
        let new_instance = || Instance { worker, listeners: BTreeMap::new() };
        let mut instances = model.instances.write();
        let listed = instances.entry(instance.clone()).or_insert_with(new_instance);
        listed.listeners.insert(dp_rank, Arc::clone(&listener));
        drop(instances);
        self.models.write().entry(key).or_insert_with(|| Arc::clone(&model));
        if is_shared {
            self.decoders.deliver(&listener, Delivery::Unmute(dp_rank));
        } else if let Err(error) = self.sockets.open(Arc::clone(&listener)) {
            unlist(&model, &instance, Some(dp_rank));
            if is_from_dump {
                // What a dump said of it is still there.
                model.instances.write().insert(instance, Instance { worker, listeners: BTreeMap::new() });
            }
            if let ConnectError::Busy = error {
                self.metrics.bound(Bound::RegistrationWait);
            }
            return Err(refused(&error));
        }
        if listener.options.is_bound() {
            self.decoders.deliver(&listener, Delivery::Follow);
        }
        if is_from_dump && start == Start::AtOnce {
            self.release_held(&listener, dp_rank, Some(Position::UNKNOWN), pending);
        }
        model.update_lora_name();
        Ok(Registered::New)
    }

    /// The model of that name, or a new one that is not registered yet. One that nobody is registered for gives way to one
    /// with blocks of another size.
    pub(super) fn model_for(&self, key: &ModelKey, block_size: BlockSize) -> Result<Arc<Model>, RegistrationError> {
        let known = self.models.read().get(key).cloned();
        if let Some(model) = known.filter(|model| model.block_size != block_size) {
            self.forget_if_empty(&model);
        }
        let (known, count) = {
            let models = self.models.read();
            (models.get(key).cloned(), models.len())
        };
        match known {
            Some(model) if model.block_size == block_size => Ok(model),
            Some(model) => Err(RegistrationError::BlockSize {
                model: key.clone(),
                existing: model.block_size.tokens(),
                asked: block_size.tokens(),
            }),
            None if count >= self.options.models_max => {
                self.metrics.bound(Bound::Models);
                Err(RegistrationError::TooMany { what: "models", max: self.options.models_max })
            }
            None => self.new_model(key, block_size),
        }
    }

    fn new_model(&self, key: &ModelKey, block_size: BlockSize) -> Result<Arc<Model>, RegistrationError> {
        let index = self.new_index(key).inspect_err(|_| self.metrics.bound(Bound::Models))?;
        let model = Arc::new(Model {
            key: key.clone(),
            block_size,
            lora_name: RwLock::default(),
            replaceable: ReplaceableIndex::new(self.options.design, index),
            supervisor: Arc::clone(&self.supervisor),
            shared: self.rank_maker.clone().map(SharedRanks::new),
            instances: RwLock::default(),
            windows: Windows::default(),
            counts: ModelCounts::default(),
            id: self.new_id(),
            uses: self.uses.clone(),
            history: History::new(self.options.history_blocks_max),
            spaces: SeenSpaces::default(),
            metrics: Arc::clone(&self.metrics),
            writer: self.next_writer.fetch_add(1, Ordering::Relaxed) % self.writers.count(),
        });
        let index: Arc<dyn Leftover> = Arc::<Model>::clone(&model);
        self.writers.serve(model.writer, Arc::downgrade(&index));
        Ok(model)
    }

    pub(super) fn new_id(&self) -> u64 {
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
    ///
    /// No answer names the ranks from then on. Waits for their decoders and writers to forget them, for two seconds at most.
    pub fn unregister(
        &self,
        instance: &InstanceId,
        model_name: &str,
        tenant_id: Option<&str>,
        dp_rank: Option<DpRank>,
    ) -> Unregistered {
        let mut pending = Pending::default();
        let ranks = {
            let _registering = self.registering.lock();
            let models: Vec<Arc<Model>> = self.models_of(Some(model_name), tenant_id);
            let leave = |model: &Arc<Model>| {
                let ranks = self.leave(model, instance, dp_rank, &mut pending);
                self.forget_if_empty(model);
                ranks
            };
            models.iter().map(leave).sum()
        };
        Unregistered { ranks, is_forgotten: self.wait(pending) }
    }

    /// Stops listening to a rank unless somebody wants it by hand, and with it to ranks that only its stream
    /// names.
    pub(crate) fn unregister_kept(&self, rank: &RankId, emptied: EmptiedModel) -> Unregistered {
        let mut pending = Pending::default();
        let ranks = self.leave_kept(rank, emptied, &mut pending);
        Unregistered { ranks, is_forgotten: self.wait(pending) }
    }

    /// Waits for other threads' part in a change, for two seconds at most; whether it is done.
    fn wait(&self, pending: Pending) -> bool {
        let is_done = pending.wait();
        if !is_done {
            self.metrics.bound(Bound::RegistrationWait);
        }
        is_done
    }

    fn leave_kept(&self, rank: &RankId, emptied: EmptiedModel, pending: &mut Pending) -> usize {
        let _registering = self.registering.lock();
        let model = self.models.read().get(&rank.model).cloned();
        let Some(model) = model.filter(|_| self.keepers.keeper(rank).is_some_and(|keeper| keeper != Keeper::Hand))
        else {
            return 0;
        };
        let stream = listener(&model, &rank.instance, rank.dp_rank);
        let mut left = self.leave(&model, &rank.instance, Some(rank.dp_rank), pending);
        let of_stream: Vec<RankId> = {
            let instances = model.instances.read();
            let listed = instances.get(&rank.instance).into_iter().flat_map(|instance| &instance.listeners);
            let same = listed.filter(|(_, other)| stream.as_ref().is_some_and(|stream| Arc::ptr_eq(stream, other)));
            same.map(|(&dp_rank, _)| RankId { dp_rank, ..rank.clone() }).collect()
        };
        if of_stream.iter().all(|other| self.keepers.keeper(other).is_none()) {
            let leave = |other: &RankId| self.leave(&model, &rank.instance, Some(other.dp_rank), pending);
            left += of_stream.iter().map(leave).sum::<usize>();
        }
        if emptied == EmptiedModel::Goes {
            self.forget_if_empty(&model);
        }
        left
    }

    /// Takes an instance or one of its ranks out of a model; how many ranks it was.
    fn leave(
        &self,
        model: &Arc<Model>,
        instance: &InstanceId,
        dp_rank: Option<DpRank>,
        pending: &mut Pending,
    ) -> usize {
        let mut ranks = self.forget_dumped(model, instance, dp_rank, pending);
        let closed = unlist(model, instance, dp_rank);
        ranks += closed.len();
        for (dp_rank, listener) in &closed {
            self.stop_listening(model, *dp_rank, listener, pending);
            let rank = RankId { model: model.key.clone(), instance: instance.clone(), dp_rank: *dp_rank };
            let keeper = self.keepers.keeper(&rank);
            let owner = keeper.as_ref().map(Keeper::owner);
            log_rank!(info, rank, endpoint = listener.options.endpoint.as_str(), owner, "rank unregistered");
            self.keepers.forget(&rank);
            let (instance, model) = (instance.clone(), model.key.clone());
            self.departures.note(Departure { at: Instant::now(), instance, dp_rank: *dp_rank, model });
        }
        model.update_lora_name();
        ranks
    }

    /// Forgets a model unless an instance is registered for it.
    fn forget_if_empty(&self, model: &Model) {
        if model.instances.read().is_empty() {
            let left = {
                let mut models = self.models.write();
                models.remove(&model.key);
                models.len()
            };
            // Behind the call: no answer waits for more room.
            drop(self.share_memory_among(left));
        }
    }

    /// Closes a stream that no rank needs any more; of one that others still need, ignores the rank.
    fn stop_listening(&self, model: &Arc<Model>, dp_rank: DpRank, listener: &Arc<Listener>, pending: &mut Pending) {
        let is_listed = |instance: &Instance| instance.listeners.values().any(|other| Arc::ptr_eq(other, listener));
        if model.instances.read().get(&listener.instance).is_some_and(is_listed) {
            self.decoders.deliver(listener, Delivery::Mute(dp_rank, pending.add()));
            self.release_held(listener, dp_rank, None, pending);
            return;
        }
        let name = StreamName::new(model.key.clone(), listener.instance.clone(), listener.dp_rank, &listener.options);
        let remembered = Arc::clone(&self.remembered);
        let remember = move |position| remembered.lock().keep(name, position);
        // Ranks of the instance that no listener was registered for, too.
        let is_last = model.worker(&listener.instance) != Some(listener.worker);
        self.retire(listener, is_last.then_some(listener.worker), remember, pending);
    }

    /// Closes a stream and has everything from it forgotten, and with it all of `worker`.
    pub(super) fn retire(
        &self,
        listener: &Arc<Listener>,
        worker: Option<WorkerId>,
        remember: impl FnOnce(StreamPosition) + Send + 'static,
        pending: &mut Pending,
    ) {
        let (model, done) = (Arc::clone(&listener.model), pending.add());
        let forget = move |model: &Model| worker.into_iter().for_each(|worker| model.remove_worker(worker));
        let retired = move |position| {
            remember(position);
            forget(&model);
            // The one who asked may have stopped waiting.
            let _ = done.send(());
        };
        if !self.sockets.close(listener, Box::new(retired)) {
            let model = Arc::clone(&listener.model);
            self.cleanup.run(pending, move || forget(&model));
        }
    }

    /// Forgets an instance that is known from a dump alone, or one of its ranks; how many ranks it was.
    fn forget_dumped(
        &self,
        model: &Arc<Model>,
        instance: &InstanceId,
        dp_rank: Option<DpRank>,
        pending: &mut Pending,
    ) -> usize {
        let mut instances = model.instances.write();
        let known = instances.get(instance).filter(|known| known.listeners.is_empty());
        let Some(worker) = known.map(|known| known.worker) else { return 0 };
        let mut ranks = model.index().ranks();
        ranks.retain(|rank| rank.worker == worker);
        let held = ranks.len();
        ranks.retain(|rank| dp_rank.is_none_or(|dp_rank| dp_rank == rank.dp_rank));
        if dp_rank.is_none() || ranks.len() == held {
            instances.remove(instance);
        }
        let (model, forgotten) = (Arc::clone(model), ranks.len());
        self.cleanup.run(pending, move || ranks.into_iter().for_each(|rank| model.clear_rank(rank)));
        forgotten
    }
}

/// Logs what became of a registration.
fn log_registration(registration: &Registration, keeper: &Keeper, registered: &Result<Registered, RegistrationError>) {
    let rank = RankId::of(registration);
    let (endpoint, owner) = (registration.endpoint.as_str(), keeper.owner());
    match registered {
        Ok(Registered::New) => {
            let (replay_endpoint, block_size) =
                (registration.replay_endpoint.as_deref(), registration.block_size.tokens());
            log_rank!(info, rank, endpoint, replay_endpoint, block_size, owner, "rank registered");
        }
        Ok(Registered::Already) => log_rank!(debug, rank, endpoint, owner, "rank is already registered"),
        // The client gets the error, and a discovery source logs it.
        Err(error) => log_rank!(debug, rank, endpoint, owner, %error, "failed to register the rank"),
    }
}

/// Takes an instance, or one of its ranks, off the list of those that answers name.
fn unlist(model: &Model, instance: &InstanceId, dp_rank: Option<DpRank>) -> Vec<(DpRank, Arc<Listener>)> {
    let mut instances = model.instances.write();
    let Entry::Occupied(mut entry) = instances.entry(instance.clone()) else { return Vec::new() };
    let listeners = &mut entry.get_mut().listeners;
    let closed: Vec<_> = match dp_rank {
        Some(dp_rank) => listeners.remove_entry(&dp_rank).into_iter().collect(),
        None => std::mem::take(listeners).into_iter().collect(),
    };
    if listeners.is_empty() && !closed.is_empty() {
        entry.remove();
    }
    closed
}

/// The error for a listener that cannot be opened.
pub(super) fn refused(error: &ConnectError) -> RegistrationError {
    match error {
        ConnectError::Endpoint { .. } => RegistrationError::Endpoint(error.to_string()),
        ConnectError::Exhausted(_) | ConnectError::Thread(_) | ConnectError::Busy | ConnectError::Stopping => {
            RegistrationError::Unavailable(error.to_string())
        }
    }
}

/// The error for a rank that is registered in another way.
fn contradiction(
    instance: InstanceId,
    dp_rank: DpRank,
    existing: &ListenerOptions,
    asked: &ListenerOptions,
) -> RegistrationError {
    let endpoint = existing.endpoint.clone();
    let existing = match existing.endpoint == asked.endpoint {
        true => format!("{endpoint} but another replay_endpoint, lora_name, engine, removal or extra_keys"),
        false => endpoint,
    };
    RegistrationError::Rank { instance, dp_rank, existing }
}
