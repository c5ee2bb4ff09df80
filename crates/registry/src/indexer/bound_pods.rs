//! Pods that register themselves: engines that connect to this service, named by the topics of their messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use tracing::{info, warn};

use super::{Indexer, RegistrationError};
use flash_indexer_ingest::log_listener;
use flash_indexer_ingest::{
    BindError, BoundOptions, Connection, Listener, ListenerOptions, PendingRegistration, Refusal,
};
use flash_indexer_ingest::{bound_endpoint, is_bound};
use flash_indexer_telemetry::metrics::Bound;
use flash_indexer_telemetry::supervision::{ThreadKind, Watch};
use flash_indexer_types::EmptyModelPolicy;
use flash_indexer_types::RankId;
use flash_indexer_types::{InstanceId, ModelKey};
use flash_indexer_types::{Owner, Registered, Registration};
use parking_lot::Mutex;

/// How often pods are looked for whose connection is gone.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How engines that connect to the service are taken in.
#[derive(Debug, Clone)]
pub struct PodOptions {
    /// Addresses to bind, such as `tcp://0.0.0.0:5557`; port `*` takes a free one.
    pub endpoints: Vec<String>,
    /// Messages whose topic begins otherwise are not received.
    pub topic_prefix: String,
    /// Tenant of pods that register themselves.
    pub tenant_id: String,
    /// Models whose pods may register themselves, `*` standing for any text; none allows every model.
    pub models: Vec<String>,
    /// Ranks of pods that may register themselves; 0 for none.
    pub pods_max: usize,
    /// Models that pods may add by registering themselves; models of other registrations do not count. None allows half
    /// of [`IndexerOptions::models_max`](super::IndexerOptions::models_max).
    pub models_max: Option<usize>,
    /// A pod that has registered itself is taken out when its connection is gone for so long; none never does.
    pub timeout: Option<Duration>,
}

impl PodOptions {
    /// Ranks that may register themselves, where nothing else is said.
    pub const PODS_MAX: usize = 4_096;
    /// What topics begin with, where nothing else is said.
    pub const TOPIC_PREFIX: &str = "kv@";
    /// How long a connection may be gone, where nothing else is said.
    pub const TIMEOUT: Duration = Duration::from_secs(300);

    /// The usual way, over these addresses.
    #[must_use]
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            topic_prefix: Self::TOPIC_PREFIX.to_owned(),
            tenant_id: ModelKey::DEFAULT_TENANT.to_owned(),
            models: Vec::new(),
            pods_max: Self::PODS_MAX,
            models_max: None,
            timeout: Some(Self::TIMEOUT),
        }
    }

    fn allows(&self, model_name: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|pattern| fits(pattern, model_name))
    }
}

/// Engines cannot be waited for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ListenError(#[from] BindError);

/// What is known of the bound socket.
pub(super) struct Pods {
    options: PodOptions,
    /// What is shown as the endpoint of its pods.
    pub(super) endpoint: String,
    addresses: Vec<String>,
    refusals: Mutex<BTreeMap<&'static str, u64>>,
}

impl Pods {
    /// Counts a refusal. Whether it is to be logged: the first one for a reason, then the second, the fourth, and so on.
    fn is_logged(&self, reason: &'static str) -> bool {
        let mut refusals = self.refusals.lock();
        let times = refusals.entry(reason).or_default();
        *times += 1;
        times.is_power_of_two()
    }
}

/// Ends the registration of pods when it is dropped.
#[derive(Debug)]
pub struct PodsGuard(#[expect(dead_code, reason = "it is there to be dropped")] Sender<()>);

impl Indexer {
    /// Binds a socket that engines connect to. Pods that are registered are followed from then on, others wait for
    /// [`Indexer::welcome_pods`], within bounds.
    ///
    /// # Errors
    ///
    /// When an address cannot be bound, or there is no thread.
    pub fn listen_for_pods(&self, options: PodOptions) -> Result<(), ListenError> {
        let bound = BoundOptions { endpoints: options.endpoints.clone(), topic_prefix: options.topic_prefix.clone() };
        let addresses = self.sockets.bind(&bound)?;
        let endpoint = bound_endpoint(&addresses);
        // A service listens once.
        let _ = self.pods.set(Pods { options, endpoint, addresses, refusals: Mutex::default() });
        Ok(())
    }

    /// Registers pods that come, from when `may_begin` says so until the guard is dropped.
    ///
    /// # Errors
    ///
    /// When there is no thread.
    pub fn welcome_pods(self: &Arc<Self>, may_begin: impl Fn() -> bool + Send + 'static) -> std::io::Result<PodsGuard> {
        let (guard, dropped) = bounded(0);
        let indexer = Arc::clone(self);
        let run = move |watch: &Arc<Watch>| indexer.admit_all(watch, may_begin, &dropped);
        self.supervisor.spawn(ThreadKind::Pods, None, run)?;
        Ok(PodsGuard(guard))
    }

    /// Addresses that engines can connect to, with their real ports.
    #[must_use]
    pub fn pod_addresses(&self) -> Vec<String> {
        self.pods.get().map(|pods| pods.addresses.clone()).unwrap_or_default()
    }

    /// What a registration's endpoint is called here.
    pub(super) fn resolve_endpoint(&self, endpoint: String) -> Result<String, RegistrationError> {
        if !is_bound(&endpoint) {
            return Ok(endpoint);
        }
        let pods = self.pods.get().ok_or_else(|| {
            let why =
                format!("endpoint {endpoint:?}: this service waits for no engines; start it with --listen-events");
            RegistrationError::Endpoint(why)
        })?;
        Ok(pods.endpoint.clone())
    }

    fn admit_all(&self, watch: &Watch, may_begin: impl Fn() -> bool, dropped: &Receiver<()>) {
        let arrivals = self.decoders.pending_registrations();
        let mut gone: BTreeMap<u64, Instant> = BTreeMap::new();
        let mut looked = Instant::now();
        while dropped.try_recv() != Err(TryRecvError::Disconnected) && !self.is_stopping() {
            if !may_begin() {
                std::thread::sleep(BEGIN_CHECK);
                continue;
            }
            let arrival = arrivals.recv_timeout(STOP_CHECK);
            watch.begin(None);
            if let Ok(arrival) = arrival {
                // A refused pod is looked at again after a while.
                let failed = || Err(Refusal::Refused { reason: "registration_failed", why: "it panicked".to_owned() });
                if let Err(refusal) = watch.guarded(|| self.admit(&arrival)).unwrap_or_else(failed) {
                    self.decoders.refuse(arrival, refusal);
                }
            }
            if looked.elapsed() >= LOOK_INTERVAL {
                looked = Instant::now();
                watch.guarded(|| self.let_pods_go(&mut gone, looked));
            }
            watch.end();
        }
    }

    /// Registers a pod's rank that has come by itself.
    fn admit(&self, arrival: &PendingRegistration) -> Result<(), Refusal> {
        let Some(pods) = self.pods.get() else { return Ok(()) };
        let Pods { options, endpoint, .. } = pods;
        let PendingRegistration { name, dp_rank, block_size, refused_before } = arrival;
        // No pod is known to make the thread fail, so a name does.
        #[cfg(any(test, feature = "fault-injection"))]
        assert!(name.model_name != "registrar-fault", "a test asked for a failure");
        let refuse = |reason: &'static str, why: String| {
            if *refused_before != Some(reason) && pods.is_logged(reason) {
                let (model, instance) = (name.model_name.as_str(), name.instance.to_string());
                warn!(
                    model,
                    instance = instance.as_str(),
                    dp_rank = dp_rank.0,
                    reason,
                    "failed to follow the pod: {why}"
                );
            }
            Err(Refusal::Refused { reason, why })
        };
        if options.pods_max == 0 {
            return refuse("not_registered", "it is not registered, and pods may not register themselves".to_owned());
        }
        if !options.allows(&name.model_name) {
            return refuse("model_not_allowed", "its model is none of --pod-models".to_owned());
        }
        let model = ModelKey::new(name.model_name.clone(), Some(options.tenant_id.clone()));
        let known = self.models.read().get(&model).map(|model| model.block_size);
        let Some(block_size) = block_size.and_then(BlockSize::new).or(known) else {
            return Err(Refusal::BlockSizeUnknown);
        };
        self.dismiss_if_outgrown(&model, &name.instance, *dp_rank, block_size);
        if self.owners.pod_ranks() >= options.pods_max {
            self.metrics.bound(Bound::Pods);
            return refuse("too_many_pods", format!("{} have registered themselves already", options.pods_max));
        }
        let models_max = options.models_max.unwrap_or(self.options.models_max.div_ceil(2));
        if known.is_none() && !self.has_room_for_pod_model(models_max) {
            self.metrics.bound(Bound::PodModels);
            let why = format!(
                "pods that registered themselves have added {models_max} models already: name the models that may with \
                 --pod-models, register this one with POST /register, or raise --pod-models-max"
            );
            return refuse("too_many_pod_models", why);
        }
        let registration = Registration {
            dp_rank: *dp_rank,
            ..Registration::new(name.instance.clone(), model.clone(), endpoint.as_str(), block_size)
        };
        match self.register_for(Owner::Pod, registration) {
            Ok(Registered::New) => {
                self.metrics.pod_registered();
                Ok(())
            }
            Ok(Registered::Already) => Ok(()),
            Err(error) => refuse(reason(&error), error.to_string()),
        }
    }

    /// Whether pods may add a model. If they have added as many as they may, one of which no pod is connected makes room.
    fn has_room_for_pod_model(&self, models_max: usize) -> bool {
        let models = self.owners.pod_models();
        if models.len() < models_max {
            return true;
        }
        let Some(model) = models.iter().find(|model| self.is_disconnected(model)) else { return false };
        info!(model_name = %model.model_name, "no pod of the model is connected: it makes room for another model");
        for rank in self.owners.pods_of(model) {
            self.metrics.pod_left();
            self.unregister_owned(&rank, EmptyModelPolicy::Remove);
        }
        true
    }

    /// Whether every rank of a model has lost its connection. A rank that was registered just now is still connecting.
    fn is_disconnected(&self, key: &ModelKey) -> bool {
        let Some(model) = self.models.read().get(key).cloned() else { return false };
        let instances = model.instances.read();
        let mut listeners = instances.values().flat_map(|instance| instance.listeners.values());
        listeners.all(|listener| listener.connection() == Connection::Disconnected)
    }

    /// Takes a rank out that has registered itself and has blocks of another size now.
    fn dismiss_if_outgrown(&self, key: &ModelKey, instance: &InstanceId, dp_rank: DpRank, block_size: BlockSize) {
        let listener = self.pod_listener(key, instance, dp_rank);
        let outgrown = listener.filter(|it| self.is_automatic(it) && it.model.block_size() != block_size);
        if let Some(listener) = outgrown {
            let block_size = block_size.tokens();
            log_listener!(info, listener, block_size, "the pod connected again with another block size; unregistering");
            self.forget_pod(&listener);
        }
    }

    /// Lets a registration that was asked for take the place of one that a pod has made by itself, if they differ.
    pub(super) fn give_way(&self, registration: &Registration) {
        if !is_bound(&registration.endpoint) {
            return;
        }
        let listeners = self.listeners_of_pod(&registration.model, &registration.instance, registration.dp_rank);
        for listener in listeners.iter().filter(|listener| self.is_automatic(listener)) {
            if !says_the_same(listener, registration) {
                self.forget_pod(listener);
            }
        }
    }

    /// Refuses a second registration of a pod's rank for another tenant: its messages are one listener's.
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

    /// The listeners of a pod's rank, for whatever tenant.
    fn listeners_of_pod(&self, key: &ModelKey, instance: &InstanceId, dp_rank: DpRank) -> Vec<Arc<Listener>> {
        let models = self.models_of(Some(&key.model_name), None);
        let listeners = models.iter().filter_map(|model| super::handover::listener(model, instance, dp_rank));
        listeners.filter(|listener| listener.options.is_bound()).collect()
    }

    fn forget_pod(&self, listener: &Listener) {
        self.unregister_owned(&rank_of(listener), EmptyModelPolicy::Remove);
    }

    fn is_automatic(&self, listener: &Listener) -> bool {
        self.owners.owner(&rank_of(listener)) == Some(Owner::Pod)
    }

    fn pod_listener(&self, key: &ModelKey, instance: &InstanceId, dp_rank: DpRank) -> Option<Arc<Listener>> {
        let listener = super::handover::listener(self.models.read().get(key)?, instance, dp_rank);
        listener.filter(|listener| listener.options.is_bound())
    }

    /// Takes pods out that have registered themselves and whose connection is gone for too long. `gone` says since
    /// when.
    fn let_pods_go(&self, gone: &mut BTreeMap<u64, Instant>, now: Instant) {
        let Some(timeout) = self.pods.get().and_then(|pods| pods.options.timeout) else { return };
        let kept = self.kept().into_iter().filter(|(_, kept)| kept.owner == Owner::Pod);
        let listeners = kept.filter_map(|(rank, _)| self.pod_listener(&rank.model, &rank.instance, rank.dp_rank));
        let unconnected: Vec<_> = listeners.filter(|it| it.connection() != Connection::Connected).collect();
        gone.retain(|id, _| unconnected.iter().any(|listener| listener.id == *id));
        for listener in unconnected {
            if now.duration_since(*gone.entry(listener.id).or_insert(now)) >= timeout {
                log_listener!(info, listener, "the pod stayed disconnected for too long; unregistering");
                // Before it is gone, so that whoever sees that finds it counted.
                self.metrics.pod_left();
                self.forget_pod(&listener);
            }
        }
    }
}

fn rank_of(listener: &Listener) -> RankId {
    let (model, instance) = (listener.model.key().clone(), listener.instance.clone());
    RankId { model, instance, dp_rank: listener.dp_rank }
}

/// Longest wait before the thread notices that it should end.
const STOP_CHECK: Duration = Duration::from_millis(100);
/// How often it looks whether it may begin.
const BEGIN_CHECK: Duration = Duration::from_millis(10);

/// Whether a pod's registration of itself says all that another one does.
fn says_the_same(listener: &Listener, registration: &Registration) -> bool {
    let ListenerOptions { replay_endpoint, lora_name, engine, removed_copies, extra_keys, .. } = &listener.options;
    *listener.model.key() == registration.model
        && listener.model.block_size() == registration.block_size
        && *replay_endpoint == registration.replay_endpoint
        && *lora_name == registration.lora_name
        && *engine == registration.engine
        && *removed_copies == registration.removed_copies
        && *extra_keys == registration.extra_keys
}

/// A short name for counting why a registration failed.
const fn reason(error: &RegistrationError) -> &'static str {
    match error {
        RegistrationError::BlockSize { .. } => "block_size_mismatch",
        RegistrationError::Rank { .. } => "registered_otherwise",
        RegistrationError::TooMany { .. } => "too_many_ranks",
        RegistrationError::Memory { .. } => "too_little_memory",
        RegistrationError::Endpoint(_)
        | RegistrationError::Address(_)
        | RegistrationError::Name(_)
        | RegistrationError::Unavailable(_) => "registration_failed",
    }
}

/// Whether a text fits a pattern in which `*` stands for any text.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_allow_what_they_say() {
        for (pattern, text) in [
            ("llama", "llama"),
            ("*", ""),
            ("*", "x"),
            ("meta/*", "meta/llama"),
            ("*-8b", "llama-8b"),
            ("m*/l*-8b", "meta/llama-8b"),
            ("a*a", "aa"),
            ("*a*", "bab"),
        ] {
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("llama", "llama-3"),
            ("", "x"),
            ("meta/*", "met"),
            ("*-8b", "llama-8b-it"),
            ("a*a", "a"),
            ("a*b*c", "acb"),
        ] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
    }
}
