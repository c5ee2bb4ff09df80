//! Engines come and go.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flash_indexer_core::designs::RadixTree;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, RemovedCopies, WorkerId};
use parking_lot::RwLock;

use super::Indexer;
use crate::ingest::{ConnectError, Listener, ListenerOptions};
use crate::instance::{InstanceId, ModelKey};
use crate::model::{Instance, Model, Windows};

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
    /// What its removals mean.
    pub removed_copies: RemovedCopies,
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

/// What was taken out of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unregistered {
    /// Ranks that are listened to no more; none if nothing fitted.
    pub ranks: usize,
}

impl Indexer {
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
            removed_copies: registration.removed_copies,
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
                format!("{} but another replay_endpoint, lora_name, engine or removal", listener.options.endpoint)
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
