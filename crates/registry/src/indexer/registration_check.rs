//! Checks of registrations against the options alone.

use flash_indexer_types::endpoints::{EndpointError, is_ipc, is_pulled, is_streamed};
use flash_indexer_types::{EngineKind, ListenerOptions, Registration};

use super::{IndexerOptions, RegistrationError};

/// Whether a registration may name an `ipc://` endpoint, a path of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IpcPaths {
    /// It may: the operator named it on the command line.
    Allowed,
    /// Only if the options allow it.
    AsConfigured,
}

impl IndexerOptions {
    /// Checks a registration that the operator names on the command line, as
    /// [`Indexer::register_configured`](super::Indexer::register_configured) does before it compares it with others.
    ///
    /// # Errors
    ///
    /// If a name, an endpoint or a combination of fields is invalid.
    pub fn check_configured(&self, registration: &Registration) -> Result<(), RegistrationError> {
        self.check(registration, IpcPaths::Allowed)
    }

    pub(super) fn check(&self, registration: &Registration, ipc: IpcPaths) -> Result<(), RegistrationError> {
        registration.check_names()?;
        check_shared_cache(registration)?;
        self.check_endpoints(&registration.options, ipc)
    }

    /// Rejects fields that the source of the events does not have.
    fn check_fields(options: &ListenerOptions) -> Result<(), RegistrationError> {
        let (engine, cache_blocks) = (options.engine, options.cache_blocks);
        let error = match &options.replay_endpoint {
            Some(_) if !options.has_events() => {
                "an instance without events has no replay_endpoint; leave it out, or give the endpoint of its events"
            }
            _ if options.has_events() && cache_blocks.is_some() => {
                "cache_blocks is for instances without events: an engine that publishes events needs none"
            }
            Some(replay_endpoint) if *replay_endpoint == options.endpoint => {
                "replay_endpoint is the endpoint of the events; give the engine's address for replays, such as tcp://host:6557, or leave it out"
            }
            Some(replay_endpoint) if is_pulled(replay_endpoint) => {
                "replay_endpoint is an address of ZeroMQ, such as tcp://host:6557: events that are pulled over HTTP cannot be replayed"
            }
            Some(_) if options.is_pulled() => {
                "events that are pulled over HTTP cannot be replayed; leave out replay_endpoint"
            }
            None if options.is_pulled() && engine.is_some_and(|engine| engine != EngineKind::Trtllm) => {
                "events are pulled over HTTP from TensorRT-LLM only; give the ZeroMQ address of the engine, such as tcp://host:5557"
            }
            Some(replay_endpoint) if is_streamed(replay_endpoint) => {
                "replay_endpoint is an address of ZeroMQ, such as tcp://host:6557; leave it out, or give the ZeroMQ endpoint as well"
            }
            Some(_) if options.is_streamed() => {
                "events over gRPC are replayed over the same address; leave out replay_endpoint"
            }
            _ => return Ok(()),
        };
        Err(RegistrationError::Endpoint(error.to_owned()))
    }

    /// Rejects endpoints that must not be dialled.
    fn check_endpoints(&self, options: &ListenerOptions, ipc: IpcPaths) -> Result<(), RegistrationError> {
        Self::check_fields(options)?;
        let ListenerOptions { endpoint, replay_endpoint, .. } = options;
        let of_events = Some(endpoint).filter(|_| options.has_events() && !options.is_bound());
        let event_error: fn(EndpointError) -> RegistrationError = RegistrationError::from;
        let dialled = of_events.map(|endpoint| (endpoint, event_error)).into_iter();
        let dialled = dialled.chain(replay_endpoint.iter().map(|endpoint| (endpoint, replay_error as _)));
        for (endpoint, registration_error) in dialled {
            let is_allowed = !is_ipc(endpoint) || ipc == IpcPaths::Allowed || self.allow_ipc;
            let checked = self.engine_networks.check_endpoint(endpoint).and_then(|()| match is_allowed {
                true => Ok(()),
                false => Err(EndpointError::Ipc { endpoint: endpoint.clone() }),
            });
            checked.map_err(registration_error)?;
        }
        Ok(())
    }
}

/// The error for a replay endpoint, which is reached over ZeroMQ alone.
fn replay_error(error: EndpointError) -> RegistrationError {
    match error {
        EndpointError::Malformed { endpoint, why } => RegistrationError::Endpoint(format!(
            "invalid replay_endpoint {endpoint:?}: {why}; give an address of ZeroMQ such as tcp://host:6557"
        )),
        EndpointError::Address { .. } | EndpointError::Ipc { .. } => {
            RegistrationError::Address(format!("replay_endpoint: {error}"))
        }
    }
}

/// Rejects a shared cache with fields that only instances have.
fn check_shared_cache(registration: &Registration) -> Result<(), RegistrationError> {
    let error = match () {
        _ if registration.instance.shared_cache().is_none() => return Ok(()),
        _ if !registration.options.shared_caches.ids().is_empty() => {
            "a shared cache is attached to no other one: give shared_caches to the instances"
        }
        _ if !registration.options.has_events() => {
            "a shared cache is known from its events only: give the endpoint at which it publishes them"
        }
        _ => return Ok(()),
    };
    Err(RegistrationError::SharedCache(error))
}
