//! Pods that register themselves: engines that connect to this service, named by the topics of their messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, RemovedCopies};
use tracing::warn;

use super::{EmptiedModel, Indexer, Keeper, RankId, Registered, Registration, RegistrationError};
use crate::ingest::{Arrival, BindError, BoundOptions, Connection, Listener, ListenerOptions, Refusal};
use crate::ingest::{bound_endpoint, is_bound};
use crate::instance::{InstanceId, ModelKey};
use crate::logs::log_listener;
use crate::metrics::Bound;

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
}

/// Ends the registration of pods when it is dropped.
#[derive(Debug)]
pub(crate) struct PodsGuard(#[expect(dead_code, reason = "it is there to be dropped")] Sender<()>);

impl Indexer {
    /// Binds a socket that engines connect to. Pods that are registered are followed from then on, others wait for
    /// [`Indexer::welcome_pods`], within bounds.
    ///
    /// # Errors
    ///
    /// When an address cannot be bound, or there is no thread.
    pub(crate) fn listen_for_pods(&self, options: PodOptions) -> Result<(), ListenError> {
        let bound = BoundOptions { endpoints: options.endpoints.clone(), topic_prefix: options.topic_prefix.clone() };
        let addresses = self.sockets.bind(&bound)?;
        let endpoint = bound_endpoint(&addresses);
        // A service listens once.
        let _ = self.pods.set(Pods { options, endpoint, addresses });
        Ok(())
    }

    /// Registers pods that come, from when `may_begin` says so until the guard is dropped.
    ///
    /// # Errors
    ///
    /// When there is no thread.
    pub(crate) fn welcome_pods(
        self: &Arc<Self>,
        may_begin: impl Fn() -> bool + Send + 'static,
    ) -> std::io::Result<PodsGuard> {
        let (guard, dropped) = bounded(0);
        let indexer = Arc::clone(self);
        let run = move || indexer.admit_all(may_begin, &dropped);
        std::thread::Builder::new().name("pods".to_owned()).spawn(run)?;
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

    fn admit_all(&self, may_begin: impl Fn() -> bool, dropped: &Receiver<()>) {
        let arrivals = self.decoders.arrivals();
        let mut gone: BTreeMap<u64, Instant> = BTreeMap::new();
        let mut looked = Instant::now();
        while dropped.try_recv() != Err(TryRecvError::Disconnected) && !self.is_stopping() {
            if !may_begin() {
                std::thread::sleep(BEGIN_CHECK);
                continue;
            }
            if let Ok(arrival) = arrivals.recv_timeout(STOP_CHECK)
                && let Err(refusal) = self.admit(&arrival)
            {
                self.decoders.refuse(arrival, refusal);
            }
            if looked.elapsed() >= LOOK_INTERVAL {
                looked = Instant::now();
                self.let_pods_go(&mut gone, looked);
            }
        }
    }

    /// Registers a pod's rank that has come by itself.
    fn admit(&self, arrival: &Arrival) -> Result<(), Refusal> {
        let Some(Pods { options, endpoint, .. }) = self.pods.get() else { return Ok(()) };
        let Arrival { name, dp_rank, block_size, refused_before } = arrival;
        let refuse = |reason: &'static str, why: String| {
            if *refused_before != Some(reason) {
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
        if self.keepers.count(&Keeper::Pod) >= options.pods_max {
            self.metrics.bound(Bound::Pods);
            return refuse("too_many_pods", format!("{} have registered themselves already", options.pods_max));
        }
        let registration = Registration {
            instance: name.instance.clone(),
            dp_rank: *dp_rank,
            endpoint: endpoint.clone(),
            replay_endpoint: None,
            model: model.clone(),
            block_size,
            lora_name: None,
            engine: None,
            removed_copies: RemovedCopies::One,
        };
        match self.register_for(Keeper::Pod, registration) {
            Ok(Registered::New) => {
                self.metrics.pod_registered();
                Ok(())
            }
            Ok(Registered::Already) => Ok(()),
            Err(error) => refuse(reason(&error), error.to_string()),
        }
    }

    /// Takes a rank out that has registered itself and has blocks of another size now.
    fn dismiss_if_outgrown(&self, key: &ModelKey, instance: &InstanceId, dp_rank: DpRank, block_size: BlockSize) {
        let listener = self.pod_listener(key, instance, dp_rank);
        let outgrown = listener.filter(|it| self.is_automatic(it) && it.model.block_size != block_size);
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
        let Some(other) = listeners.iter().find(|listener| listener.model.key != *key) else { return Ok(()) };
        let existing = format!("{} for tenant {:?}", other.options.endpoint, other.model.key.tenant_id);
        Err(RegistrationError::Rank { instance: instance.clone(), dp_rank, existing })
    }

    /// The listeners of a pod's rank, for whatever tenant.
    fn listeners_of_pod(&self, key: &ModelKey, instance: &InstanceId, dp_rank: DpRank) -> Vec<Arc<Listener>> {
        let models = self.models_of(Some(&key.model_name), None);
        let listeners = models.iter().filter_map(|model| super::handover::listener(model, instance, dp_rank));
        listeners.filter(|listener| listener.options.is_bound()).collect()
    }

    fn forget_pod(&self, listener: &Listener) {
        self.unregister_kept(&rank_of(listener), EmptiedModel::Goes);
    }

    fn is_automatic(&self, listener: &Listener) -> bool {
        self.keepers.keeper(&rank_of(listener)) == Some(Keeper::Pod)
    }

    fn pod_listener(&self, key: &ModelKey, instance: &InstanceId, dp_rank: DpRank) -> Option<Arc<Listener>> {
        let listener = super::handover::listener(self.models.read().get(key)?, instance, dp_rank);
        listener.filter(|listener| listener.options.is_bound())
    }

    /// Takes pods out that have registered themselves and whose connection is gone for too long. `gone` says since
    /// when.
    fn let_pods_go(&self, gone: &mut BTreeMap<u64, Instant>, now: Instant) {
        let Some(timeout) = self.pods.get().and_then(|pods| pods.options.timeout) else { return };
        let kept = self.kept().into_iter().filter(|(_, kept)| kept.keeper == Keeper::Pod);
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
    let (model, instance) = (listener.model.key.clone(), listener.instance.clone());
    RankId { model, instance, dp_rank: listener.dp_rank }
}

/// Longest wait before the thread notices that it should end.
const STOP_CHECK: Duration = Duration::from_millis(100);
/// How often it looks whether it may begin.
const BEGIN_CHECK: Duration = Duration::from_millis(10);

/// Whether a pod's registration of itself says all that another one does.
fn says_the_same(listener: &Listener, registration: &Registration) -> bool {
    let ListenerOptions { replay_endpoint, lora_name, engine, removed_copies, .. } = &listener.options;
    listener.model.key == registration.model
        && listener.model.block_size == registration.block_size
        && *replay_endpoint == registration.replay_endpoint
        && *lora_name == registration.lora_name
        && *engine == registration.engine
        && *removed_copies == registration.removed_copies
}

/// A short name for counting why a registration failed.
const fn reason(error: &RegistrationError) -> &'static str {
    match error {
        RegistrationError::BlockSize { .. } => "block_size_mismatch",
        RegistrationError::Rank { .. } => "registered_otherwise",
        RegistrationError::TooMany { .. } => "too_many_ranks",
        RegistrationError::Memory { .. } => "too_little_memory",
        RegistrationError::Endpoint(_) | RegistrationError::Unavailable(_) => "registration_failed",
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
