//! Registration of ranks: from then on their engines' messages are applied.

use std::collections::BTreeMap;
use std::sync::Arc;

use flash_indexer_core::{DpRank, RemovedCopies, WorkerId};
use flash_indexer_ingest::{ConnectError, Delivery, Listener, ListenerState};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::{
    ConnectionStatus, EngineKind, InstanceId, ListenerOptions, Owner, RankPosition, Registration, RegistrationOutcome,
    StreamName, log_rank,
};
use flash_indexer_wire::Start;

use super::cleanup::PendingWork;
use super::registration_check::IpcPaths;
use super::registration_error::connect_error;
use super::unregister::unlist;
use super::{Indexer, RegistrationError};
use crate::model::{Instance, Model};

impl Indexer {
    /// Registers a rank manually.
    ///
    /// # Errors
    ///
    /// If the endpoint is invalid, if the registration contradicts an existing one, or if a limit is reached.
    pub fn register(&self, registration: Registration) -> Result<RegistrationOutcome, RegistrationError> {
        self.replace_pod_registration(&registration);
        self.register_for(Owner::Manual, registration)
    }

    /// Registers a rank manually, in place of an earlier registration of it with other fields.
    ///
    /// # Errors
    ///
    /// As [`Indexer::register`].
    pub fn register_replacing(&self, registration: Registration) -> Result<RegistrationOutcome, RegistrationError> {
        let registered = self.register(registration.clone());
        if !matches!(registered, Err(RegistrationError::Rank { .. })) {
            return registered;
        }
        let mut pending = PendingWork::default();
        {
            let _registering = self.registering.lock();
            let model = self.find_model(&registration.model);
            if let Some(model) = model {
                self.remove_ranks(&model, &registration.instance, Some(registration.dp_rank), &mut pending);
            }
        }
        self.wait(pending);
        self.register(registration)
    }

    /// Registers a rank that the operator named on the command line. It accepts `ipc://` endpoints without
    /// [`IndexerOptions::allow_ipc`](super::IndexerOptions::allow_ipc).
    ///
    /// # Errors
    ///
    /// As [`Indexer::register`].
    pub fn register_configured(
        &self,
        registration: Registration,
        start: Start,
    ) -> Result<RegistrationOutcome, RegistrationError> {
        self.replace_pod_registration(&registration);
        self.register_from(registration, start, Owner::Manual, IpcPaths::Allowed)
    }

    /// Registers a rank for an owner, which may unregister it unless it is also registered manually.
    ///
    /// # Errors
    ///
    /// As [`Indexer::register`].
    pub fn register_for(
        &self,
        owner: Owner,
        registration: Registration,
    ) -> Result<RegistrationOutcome, RegistrationError> {
        self.register_from(registration, Start::Immediate, owner, IpcPaths::AsConfigured)
    }

    pub(super) fn register_from(
        &self,
        registration: Registration,
        start: Start,
        owner: Owner,
        ipc: IpcPaths,
    ) -> Result<RegistrationOutcome, RegistrationError> {
        self.options.check(&registration, ipc).inspect_err(|error| match error {
            RegistrationError::Name(_) => self.metrics.limit_reached(Limit::Names),
            RegistrationError::Address(_) => self.metrics.limit_reached(Limit::Addresses),
            _ => {}
        })?;
        let mut pending = PendingWork::default();
        let registered = {
            let _registering = self.registering.lock();
            let registered = self.listen(registration.clone(), start, &mut pending);
            log_registration(&registration, &owner, &registered);
            if registered.is_ok() {
                self.owners.record(owner, registration);
            } else if let Some(model) = self.find_model(&registration.model) {
                // The model may have been created for this rank only.
                self.remove_model_if_empty(&model);
            }
            registered
        };
        // Work on the stream that takes longer continues after the call.
        self.wait(pending);
        registered
    }

    /// Registers a rank. The caller holds the registration lock.
    fn listen(
        &self,
        registration: Registration,
        start: Start,
        pending: &mut PendingWork,
    ) -> Result<RegistrationOutcome, RegistrationError> {
        let Registration { instance, dp_rank, model: key, block_size, mut options } = registration;
        options.endpoint = self.resolve_endpoint(options.endpoint)?;
        options.lora_name.take_if(|name| name.is_empty());
        if options.is_pulled() {
            options.engine.get_or_insert(EngineKind::Trtllm);
        }
        let is_routed = !options.has_events();
        if is_routed {
            // A routed prompt is stored again if the index may have lost it, and is then still one copy.
            options.removed_copies = RemovedCopies::All;
        }
        if options.is_bound() {
            self.check_one_tenant(&key, &instance, dp_rank)?;
        }
        let model = self.model_for(&key, block_size)?;
        self.check_one_source(&model, &instance, dp_rank, &options, pending)?;
        let known = model.instances.read().get(&instance).map(|found| (found.worker, found.listeners.clone()));
        let is_from_dump = known.as_ref().is_some_and(|(_, listeners)| listeners.is_empty());
        let (worker, listeners) = known.unwrap_or_else(|| (WorkerId(self.new_id()), BTreeMap::new()));
        if let Some(listener) = listeners.get(&dp_rank) {
            return match listener.options == options {
                true => Ok(RegistrationOutcome::Already),
                false => Err(contradiction(instance, dp_rank, &listener.options, &options)),
            };
        }
        let ranks: usize = self.models.read().values().map(|model| model.rank_count()).sum();
        if ranks >= self.options.listeners_max {
            self.metrics.limit_reached(Limit::Listeners);
            return Err(RegistrationError::TooMany { what: "ranks", max: self.options.listeners_max });
        }
        self.check_tenant_ranks(&key.tenant_id)?;
        // Ranks with one endpoint share its stream. Two subscriptions would count every block twice. Over the bound
        // socket, and over gRPC, each rank has its own stream.
        let has_own_stream = options.is_bound() || options.is_streamed();
        let shared = listeners.values().find(|listener| listener.options == options && !has_own_stream).cloned();
        let is_shared = shared.is_some();
        let listener = shared.unwrap_or_else(|| {
            let name = StreamName::new(key.clone(), instance.clone(), dp_rank, &options);
            let decoder = match options.is_bound() {
                true => self.decoders.for_pod(&instance),
                false => self.decoders.assign(),
            };
            let state = ListenerState::new(&options);
            Arc::new(Listener {
                id: self.new_id(),
                model: Arc::<crate::model::Model>::clone(&model),
                instance: instance.clone(),
                worker,
                dp_rank,
                options,
                start: if is_from_dump { Start::Paused } else { start },
                decoder,
                // Messages that the service makes begin with number 0.
                resume_from: if is_routed { None } else { self.stream_positions.lock().get(&name) },
                state,
            })
        });
        if listener.start == Start::Paused && (start == Start::Paused || is_from_dump) {
            listener.hold().hold(dp_rank);
        }
        if is_shared {
            // Its decoder may still ignore its events.
            listener.begin_resume(dp_rank);
        }
        // Listed before the first message, which may name more ranks.
        let mut instances = model.instances.write();
        let listed = instances.entry(instance.clone()).or_insert_with(|| Instance::new(worker));
        listed.list(&listener, dp_rank);
        listed.unregistered.remove(&(listener.id, dp_rank));
        drop(instances);
        self.models.write().entry(key).or_insert_with(|| Arc::clone(&model));
        self.share_tenant_ranks(&model.key.tenant_id);
        if is_routed {
            self.routed.add(&listener);
            // The sweeps begin with the first instance.
            self.cleanup.run(&mut PendingWork::default(), || ());
        }
        if is_shared {
            self.decoders.deliver(&listener, Delivery::ResumeRank(dp_rank));
        } else if let Err(error) = self.sockets.open(Arc::clone(&listener)) {
            unlist(&model, &instance, Some(dp_rank));
            model.end_removals(&listener, None);
            if is_from_dump {
                // The restored blocks are still in the index.
                model.instances.write().insert(instance, Instance::new(worker));
            }
            match error {
                ConnectError::Busy => self.metrics.limit_reached(Limit::RegistrationWait),
                ConnectError::TooManyPulls { .. } => self.metrics.limit_reached(Limit::PulledEngines),
                ConnectError::TooManyStreams { .. } => self.metrics.limit_reached(Limit::StreamedRanks),
                _ => {}
            }
            return Err(connect_error(&error));
        }
        if is_routed {
            listener.set_connection(ConnectionStatus::Connected);
            self.decoders.deliver(&listener, Delivery::Connected);
        }
        if listener.options.is_bound() {
            self.decoders.deliver(&listener, Delivery::AttachToPod);
        }
        if is_from_dump && start == Start::Immediate {
            self.release_hold(&listener, dp_rank, Some(RankPosition::UNKNOWN), pending);
        }
        model.update_lora_name();
        Ok(RegistrationOutcome::New)
    }
}

impl Indexer {
    /// Rejects ranks with and without events in one instance: an instance without events has one rank. The registration of a
    /// rank with events replaces that of the instance without events.
    fn check_one_source(
        &self,
        model: &Arc<Model>,
        instance: &InstanceId,
        dp_rank: DpRank,
        options: &ListenerOptions,
        pending: &mut PendingWork,
    ) -> Result<(), RegistrationError> {
        let other = {
            let instances = model.instances.read();
            let mut listeners = instances.get(instance).into_iter().flat_map(|known| &known.listeners);
            let is_other = |(other, listener): &(&DpRank, &Arc<Listener>)| {
                listener.options != *options || (!options.has_events() && **other != dp_rank)
            };
            listeners.find(is_other).map(|(&dp_rank, listener)| (dp_rank, listener.options.clone()))
        };
        match other {
            Some((_, other)) if !other.has_events() && options.has_events() => {
                self.remove_ranks(model, instance, None, pending);
                Ok(())
            }
            Some((other_rank, other)) if !options.has_events() => {
                Err(contradiction(instance.clone(), other_rank, &other, options))
            }
            _ => Ok(()),
        }
    }
}

/// Logs the outcome of a registration.
fn log_registration(
    registration: &Registration,
    owner: &Owner,
    registered: &Result<RegistrationOutcome, RegistrationError>,
) {
    let rank = registration.rank_id();
    let (endpoint, owner) = (registration.options.endpoint.as_str(), owner.as_str());
    match registered {
        Ok(RegistrationOutcome::New) => {
            let (replay_endpoint, block_size) =
                (registration.options.replay_endpoint.as_deref(), registration.block_size.tokens());
            log_rank!(info, rank, endpoint, replay_endpoint, block_size, owner, "rank registered");
        }
        Ok(RegistrationOutcome::Already) => log_rank!(debug, rank, endpoint, owner, "rank is already registered"),
        // The client receives the error, and a discovery source logs it.
        Err(error) => log_rank!(debug, rank, endpoint, owner, %error, "failed to register the rank"),
    }
}

/// The error for a rank that is registered with other options.
fn contradiction(
    instance: InstanceId,
    dp_rank: DpRank,
    existing: &ListenerOptions,
    asked: &ListenerOptions,
) -> RegistrationError {
    let endpoint = existing.endpoint.clone();
    let existing = match existing.endpoint == asked.endpoint {
        true => {
            format!(
                "{endpoint} but another replay_endpoint, lora_name, engine, removal, extra_keys, cache_blocks or shared_caches"
            )
        }
        false => endpoint,
    };
    RegistrationError::Rank { instance, dp_rank, existing }
}
