//! Errors of registrations.

use flash_indexer_access::LimitExceeded;
use flash_indexer_core::DpRank;
use flash_indexer_core::run::MemoryTooSmall;
use flash_indexer_ingest::ConnectError;
use flash_indexer_types::endpoints::EndpointError;
use flash_indexer_types::names::NameError;
use flash_indexer_types::{InstanceId, ModelKey};

/// A rejected registration.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RegistrationError {
    /// The endpoint is invalid.
    #[error("{0}")]
    Endpoint(String),
    /// A field that a shared cache cannot have.
    #[error("{0}")]
    SharedCache(&'static str),
    /// A name is too long.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The endpoint is a path of this machine, or its address is not allowed for engines.
    #[error("{0}")]
    Address(String),
    /// The model has another block size.
    #[error(
        "{model} has blocks of {existing} tokens, not {asked}; use block_size {existing}, or another model_name or tenant_id"
    )]
    BlockSize {
        /// The model.
        model: ModelKey,
        /// Size of its blocks, in tokens.
        existing: u32,
        /// Requested size, in tokens.
        asked: u32,
    },
    /// The rank is registered with other options.
    #[error("rank {dp_rank} of instance {instance} is already registered with {existing}; unregister it first")]
    Rank {
        /// The instance.
        instance: InstanceId,
        /// Its rank.
        dp_rank: DpRank,
        /// Its existing registration.
        existing: String,
    },
    /// A limit is reached.
    #[error("at most {max} {what} can be registered; unregister some, or raise the limit")]
    TooMany {
        /// The limited objects.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// A limit of the tenant is reached.
    #[error(transparent)]
    Tenant(#[from] LimitExceeded),
    /// The memory limit leaves too little for the model's index.
    #[error("{model} would be one of {models} models that share --memory-max: {error}; raise it, or unregister some")]
    Memory {
        /// The model.
        model: ModelKey,
        /// Number of models, including this one.
        models: usize,
        /// Why its index cannot be created.
        error: MemoryTooSmall,
    },
    /// The service cannot register the rank now.
    #[error("{0}")]
    Unavailable(String),
}

impl From<EndpointError> for RegistrationError {
    fn from(error: EndpointError) -> Self {
        match error {
            EndpointError::Malformed { .. } => Self::Endpoint(format!(
                "{error}; POST /register also takes vllm://host:port, the gRPC server of an engine of vLLM"
            )),
            EndpointError::Address { .. } | EndpointError::Ipc { .. } => Self::Address(error.to_string()),
        }
    }
}

/// The error for a listener whose socket cannot be opened.
pub(super) fn connect_error(error: &ConnectError) -> RegistrationError {
    match error {
        ConnectError::Endpoint { .. } => RegistrationError::Endpoint(error.to_string()),
        ConnectError::Exhausted(_)
        | ConnectError::Thread(_)
        | ConnectError::Busy
        | ConnectError::TooManyPulls { .. }
        | ConnectError::TooManyStreams { .. }
        | ConnectError::Stopping => RegistrationError::Unavailable(error.to_string()),
    }
}
