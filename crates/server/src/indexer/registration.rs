//! A rank that is to be listened to, and the errors of registering it.

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::run::MemoryTooSmall;
use flash_indexer_core::{DpRank, RemovedCopies};

use crate::endpoints::EndpointError;
use crate::ingest::ConnectError;
use crate::instance::{InstanceId, ModelKey};
use crate::names::{NameError, NameField, check_names};

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
    /// Rank 0 of an instance: without replay endpoint, adapter and kind, and each removal is of one copy.
    #[must_use]
    pub fn new(instance: InstanceId, model: ModelKey, endpoint: impl Into<String>, block_size: BlockSize) -> Self {
        Self {
            instance,
            dp_rank: DpRank(0),
            endpoint: endpoint.into(),
            replay_endpoint: None,
            model,
            block_size,
            lora_name: None,
            engine: None,
            removed_copies: RemovedCopies::One,
            extra_keys: false,
        }
    }

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
