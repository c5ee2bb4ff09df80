//! Registration of pods: engines that connect to this service and identify themselves in the topics of their messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_ingest::{BindError, BoundOptions, Listener, PendingRegistration, Refusal, log_listener};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_telemetry::supervision::{ThreadKind, Watch};
use flash_indexer_types::endpoints::{bound_endpoint, check_bound_endpoint, is_bound};
use flash_indexer_types::{
    ConnectionStatus, EmptyModelPolicy, InstanceId, ListenerOptions, ModelKey, Owner, RankId, Registration,
    RegistrationOutcome,
};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::pod_options::PodOptions;
use super::{Indexer, RegistrationError};

/// Interval of checks for disconnected pods.
const DISCONNECT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The socket for pods cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// An address is one of no machine.
    #[error(
        "failed to bind {endpoint:?} for engines: {why}; give --listen-events an address such as tcp://0.0.0.0:5557"
    )]
    Endpoint {
        /// The address.
        endpoint: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An address cannot be bound on this machine.
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl PodOptions {
    /// Checks the addresses without binding them.
    ///
    /// # Errors
    ///
    /// An address is one of no machine.
    pub fn check(&self) -> Result<(), ListenError> {
        self.endpoints.iter().try_for_each(|endpoint| {
            check_bound_endpoint(endpoint).map_err(|why| ListenError::Endpoint { endpoint: endpoint.clone(), why })
        })
    }
}

/// The bound socket that pods connect to.
pub(super) struct PodSocket {
    options: PodOptions,
    /// Endpoint shown for its pods.
    pub(super) endpoint: String,
    addresses: Vec<String>,
    /// Rejections by reason.
    rejections: Mutex<BTreeMap<&'static str, u64>>,
}

impl PodSocket {
    /// Counts a rejection and returns whether to log it: the first one of each reason, then the second, the fourth, and
    /// so on.
    fn count_rejection(&self, reason: &'static str) -> bool {
        let mut rejections = self.rejections.lock();
        let times = rejections.entry(reason).or_default();
        *times += 1;
        times.is_power_of_two()
    }
}

/// Stops the registration of pods when it is dropped.
#[derive(Debug)]
pub struct PodsGuard(#[expect(dead_code, reason = "dropping it stops the thread")] Sender<()>);

impl Indexer {
    /// Binds a socket that engines connect to. Messages of registered pods are applied from then on. Other pods stay
    /// pending, within limits, until [`Indexer::start_pod_registrar`].
    ///
    /// # Errors
    ///
    /// If an address cannot be bound or the thread cannot be started.
    pub fn listen_for_pods(&self, options: PodOptions) -> Result<(), ListenError> {
        let bound = BoundOptions { endpoints: options.endpoints.clone(), topic_prefix: options.topic_prefix.clone() };
        let addresses = self.sockets.bind(&bound)?;
        let endpoint = bound_endpoint(&addresses);
        // The service binds once.
        let _ = self.pods.set(PodSocket { options, endpoint, addresses, rejections: Mutex::default() });
        Ok(())
    }

    /// Starts the thread that registers pending pods. It starts to register when `may_begin` returns true, and stops
    /// when the guard is dropped.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn start_pod_registrar(
        self: &Arc<Self>,
        may_begin: impl Fn() -> bool + Send + 'static,
    ) -> std::io::Result<PodsGuard> {
        let (guard, dropped) = bounded(0);
        let indexer = Arc::clone(self);
        let run = move |watch: &Arc<Watch>| indexer.run_pod_registrar(watch, may_begin, &dropped);
        self.supervisor.spawn(ThreadKind::Pods, None, run)?;
        Ok(PodsGuard(guard))
    }

    /// Addresses that engines can connect to, with the ports that were bound.
    #[must_use]
    pub fn pod_addresses(&self) -> Vec<String> {
        self.pods.get().map(|pods| pods.addresses.clone()).unwrap_or_default()
    }

    /// The endpoint of a registration; for a pod, that of the bound socket.
    pub(super) fn resolve_endpoint(&self, endpoint: String) -> Result<String, RegistrationError> {
        if !is_bound(&endpoint) {
            return Ok(endpoint);
        }
        let pods = self.pods.get().ok_or_else(|| {
            RegistrationError::Endpoint(format!(
                "invalid endpoint {endpoint:?}: this service binds no socket for engines; start it with --listen-events"
            ))
        })?;
        Ok(pods.endpoint.clone())
    }

    fn run_pod_registrar(&self, watch: &Watch, may_begin: impl Fn() -> bool, dropped: &Receiver<()>) {
        let pending = self.decoders.pending_registrations();
        let mut disconnected_since: BTreeMap<u64, Instant> = BTreeMap::new();
        let mut last_check = Instant::now();
        while dropped.try_recv() != Err(TryRecvError::Disconnected) && !self.is_stopping() {
            if !may_begin() {
                std::thread::sleep(BEGIN_CHECK_INTERVAL);
                continue;
            }
            let received = pending.recv_timeout(STOP_CHECK_INTERVAL);
            watch.begin(None);
            if let Ok(pod) = received {
                // A rejected pod becomes pending again after a while.
                let failed = || {
                    Err(Refusal::Refused { reason: "registration_failed", why: "the registration panicked".to_owned() })
                };
                if let Err(refusal) = watch.guarded(|| self.register_pod(&pod)).unwrap_or_else(failed) {
                    self.decoders.refuse(pod, refusal);
                }
            }
            if last_check.elapsed() >= DISCONNECT_CHECK_INTERVAL {
                last_check = Instant::now();
                watch.guarded(|| self.unregister_disconnected_pods(&mut disconnected_since, last_check));
            }
            watch.end();
        }
    }

    /// Registers a pending rank of a pod.
    fn register_pod(&self, pending: &PendingRegistration) -> Result<(), Refusal> {
        let Some(pods) = self.pods.get() else { return Ok(()) };
        let PodSocket { options, endpoint, .. } = pods;
        let PendingRegistration { name, dp_rank, block_size, refused_before } = pending;
        // Fault injection: a model name that makes the thread panic.
        #[cfg(any(test, feature = "fault-injection"))]
        assert!(name.model_name != "registrar-fault", "fault injected by a test");
        let reject = |reason: &'static str, why: String| {
            if *refused_before != Some(reason) && pods.count_rejection(reason) {
                let (model, instance) = (name.model_name.as_str(), name.instance.to_string());
                warn!(
                    model,
                    instance = instance.as_str(),
                    dp_rank = dp_rank.0,
                    reason,
                    error = why.as_str(),
                    "failed to register the pod"
                );
            }
            Err(Refusal::Refused { reason, why })
        };
        if options.pods_max == 0 {
            return reject(
                "not_registered",
                "it is not registered, and --pods-max does not allow pods to register themselves".to_owned(),
            );
        }
        if !options.allows(&name.model_name) {
            return reject("model_not_allowed", "its model matches no pattern of --pod-models".to_owned());
        }
        let model = ModelKey::new(name.model_name.clone(), Some(options.tenant_id.clone()));
        let known = self.models.read().get(&model).map(|model| model.block_size);
        // A shared cache may have larger blocks than the engines.
        let is_shared_cache = name.instance.shared_cache().is_some();
        let announced = block_size.and_then(BlockSize::new).filter(|_| !is_shared_cache);
        let Some(block_size) = announced.or(known) else {
            if is_shared_cache {
                let why = "no instance of its model is registered yet, which shows the size of blocks; register an engine, or the shared cache with POST /register";
                return reject("shared_cache_without_model", why.to_owned());
            }
            return Err(Refusal::BlockSizeUnknown);
        };
        self.unregister_if_block_size_changed(&model, &name.instance, *dp_rank, block_size);
        if self.owners.pod_ranks() >= options.pods_max {
            self.metrics.limit_reached(Limit::Pods);
            return reject("too_many_pods", format!("the limit of {} is reached; raise --pods-max", options.pods_max));
        }
        let models_max = options.models_max.unwrap_or(self.options.models_max.div_ceil(2));
        if known.is_none() && !self.has_room_for_pod_model(models_max) {
            self.metrics.limit_reached(Limit::PodModels);
            let why = format!(
                "the limit of {models_max} models of pods is reached; list the models with --pod-models, register this one with \
                 POST /register, or raise --pod-models-max"
            );
            return reject("too_many_pod_models", why);
        }
        let registration = Registration {
            dp_rank: *dp_rank,
            ..Registration::new(name.instance.clone(), model.clone(), endpoint.as_str(), block_size)
        };
        match self.register_for(Owner::Pod, registration) {
            Ok(RegistrationOutcome::New) => {
                self.metrics.pod_registered();
                Ok(())
            }
            Ok(RegistrationOutcome::Already) => Ok(()),
            Err(error) => reject(reason(&error), error.to_string()),
        }
    }

    /// Whether pods may add a model. At the limit, a model without connected pods is removed.
    fn has_room_for_pod_model(&self, models_max: usize) -> bool {
        let models = self.owners.pod_models();
        if models.len() < models_max {
            return true;
        }
        let Some(model) = models.iter().find(|model| self.is_disconnected(model)) else { return false };
        info!(model = %model.model_name, tenant = %model.tenant_id, "removing a model without connected pods; limit reached");
        for rank in self.owners.pods_of(model) {
            self.metrics.pod_unregistered();
            self.unregister_owned(&rank, EmptyModelPolicy::Remove);
        }
        true
    }

    /// Whether every rank of a model has lost its connection. A newly registered rank is connecting and has not lost
    /// it.
    fn is_disconnected(&self, key: &ModelKey) -> bool {
        let Some(model) = self.find_model(key) else { return false };
        let instances = model.instances.read();
        let mut listeners = instances.values().flat_map(|instance| instance.listeners.values());
        listeners.all(|listener| listener.connection() == ConnectionStatus::Disconnected)
    }

    /// Unregisters a rank that registered itself, if its block size has changed.
    fn unregister_if_block_size_changed(
        &self,
        key: &ModelKey,
        instance: &InstanceId,
        dp_rank: DpRank,
        block_size: BlockSize,
    ) {
        let listener = self.pod_listener(key, instance, dp_rank);
        let changed = listener.filter(|it| self.is_registered_by_pod(it) && it.model.block_size() != block_size);
        if let Some(listener) = changed {
            let block_size = block_size.tokens();
            log_listener!(info, listener, block_size, "unregistering the pod; it reconnected with another block size");
            self.unregister_pod(&listener);
        }
    }

    /// Unregisters a rank that registered itself, if a manual registration differs from its own.
    pub(super) fn replace_pod_registration(&self, registration: &Registration) {
        if !registration.options.is_bound() {
            return;
        }
        let listeners = self.listeners_of_pod(&registration.model, &registration.instance, registration.dp_rank);
        let registered_by_pod = listeners.iter().filter(|listener| self.is_registered_by_pod(listener));
        let others = registered_by_pod.filter(|listener| !is_same_registration(listener, registration));
        others.for_each(|listener| self.unregister_pod(listener));
    }

    /// Rejects a second registration of a pod's rank for another tenant. A rank's messages go to one listener.
    pub(super) fn check_one_tenant(
        &self,
        key: &ModelKey,
        instance: &InstanceId,
        dp_rank: DpRank,
    ) -> Result<(), RegistrationError> {
        let listeners = self.listeners_of_pod(key, instance, dp_rank);
        let Some(other) = listeners.iter().find(|listener| listener.model.key() != key) else { return Ok(()) };
        let existing = format!("{} for tenant {:?}", other.options.endpoint, other.model.key().tenant_id);
        Err(RegistrationError::Rank { instance: instance.clone(), dp_rank, existing })
    }

    /// The listeners of a pod's rank, for any tenant.
    fn listeners_of_pod(&self, key: &ModelKey, instance: &InstanceId, dp_rank: DpRank) -> Vec<Arc<Listener>> {
        let models = self.models_of(Some(&key.model_name), None);
        let listeners = models.iter().filter_map(|model| model.listener(instance, dp_rank));
        listeners.filter(|listener| listener.options.is_bound()).collect()
    }

    fn unregister_pod(&self, listener: &Listener) {
        self.unregister_owned(&rank_of(listener), EmptyModelPolicy::Remove);
    }

    fn is_registered_by_pod(&self, listener: &Listener) -> bool {
        self.owners.owner(&rank_of(listener)) == Some(Owner::Pod)
    }

    fn pod_listener(&self, key: &ModelKey, instance: &InstanceId, dp_rank: DpRank) -> Option<Arc<Listener>> {
        let listener = self.models.read().get(key)?.listener(instance, dp_rank);
        listener.filter(|listener| listener.options.is_bound())
    }

    /// Unregisters pods that registered themselves and are disconnected for too long. `since` has the time at which
    /// each listener was first seen disconnected.
    fn unregister_disconnected_pods(&self, since: &mut BTreeMap<u64, Instant>, now: Instant) {
        let Some(timeout) = self.pods.get().and_then(|pods| pods.options.timeout) else { return };
        let pods = self.owned_ranks().into_iter().filter(|(_, owned)| owned.owner == Owner::Pod);
        let listeners = pods.filter_map(|(rank, _)| self.pod_listener(&rank.model, &rank.instance, rank.dp_rank));
        let unconnected: Vec<_> = listeners.filter(|it| it.connection() != ConnectionStatus::Connected).collect();
        since.retain(|id, _| unconnected.iter().any(|listener| listener.id == *id));
        for listener in unconnected {
            if now.duration_since(*since.entry(listener.id).or_insert(now)) >= timeout {
                log_listener!(info, listener, "unregistering the pod; it was disconnected for too long");
                // Counted first: an observer of the removal then sees the new count.
                self.metrics.pod_unregistered();
                self.unregister_pod(&listener);
            }
        }
    }
}

fn rank_of(listener: &Listener) -> RankId {
    let (model, instance) = (listener.model.key().clone(), listener.instance.clone());
    RankId { model, instance, dp_rank: listener.dp_rank }
}

/// Longest time until the thread notices that it should stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of calls to `may_begin`.
const BEGIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Whether a pod's own registration equals another one.
fn is_same_registration(listener: &Listener, registration: &Registration) -> bool {
    let own = &listener.options;
    // The listener's endpoint is the bound one, and a pod has events.
    let (endpoint, cache_blocks) = (own.endpoint.clone(), own.cache_blocks);
    *listener.model.key() == registration.model
        && listener.model.block_size() == registration.block_size
        && *own == ListenerOptions { endpoint, cache_blocks, ..registration.options.clone() }
}

/// Reason label of a failed registration.
const fn reason(error: &RegistrationError) -> &'static str {
    match error {
        RegistrationError::BlockSize { .. } => "block_size_mismatch",
        RegistrationError::Rank { .. } => "registered_otherwise",
        RegistrationError::TooMany { .. } | RegistrationError::Tenant(_) => "too_many_ranks",
        RegistrationError::Memory { .. } => "too_little_memory",
        RegistrationError::Endpoint(_)
        | RegistrationError::SharedCache(_)
        | RegistrationError::Address(_)
        | RegistrationError::Name(_)
        | RegistrationError::Unavailable(_) => "registration_failed",
    }
}
