//! A rank that is to be listened to, and the errors of registering it.

use flash_indexer_core::DpRank;
use flash_indexer_core::run::MemoryTooSmall;

use flash_indexer_ingest::ConnectError;
use flash_indexer_types::endpoints::EndpointError;
use flash_indexer_types::names::NameError;
use flash_indexer_types::{InstanceId, ModelKey};

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
        error: MemoryTooSmall,
    },
    /// The service cannot take it now.
    #[error("{0}")]
    Unavailable(String),
}

impl From<EndpointError> for RegistrationError {
    fn from(error: EndpointError) -> Self {
        match error {
            EndpointError::Malformed { .. } => Self::Endpoint(error.to_string()),
            EndpointError::Address { .. } | EndpointError::Ipc { .. } => Self::Address(error.to_string()),
        }
    }
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
