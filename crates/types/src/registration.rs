//! Registrations of ranks.

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;

use crate::names::{NameError, NameField, check_names};
use crate::{InstanceId, ListenerOptions, ModelKey, RankId};

/// Registration of a rank: its identity, and the options of its listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The engine instance.
    pub instance: InstanceId,
    /// The data-parallel rank.
    pub dp_rank: DpRank,
    /// Model and tenant.
    pub model: ModelKey,
    /// Block size in tokens.
    pub block_size: BlockSize,
    /// Endpoints of the engine, and how its messages are decoded.
    pub options: ListenerOptions,
}

impl Registration {
    /// Registration of rank 0, with the options of [`ListenerOptions::new`].
    #[must_use]
    pub fn new(instance: InstanceId, model: ModelKey, endpoint: impl Into<String>, block_size: BlockSize) -> Self {
        Self { instance, dp_rank: DpRank(0), model, block_size, options: ListenerOptions::new(endpoint) }
    }

    /// Identity of the registered rank.
    #[must_use]
    pub fn rank_id(&self) -> RankId {
        RankId { model: self.model.clone(), instance: self.instance.clone(), dp_rank: self.dp_rank }
    }

    /// Rejects names and endpoints that are too long.
    pub fn check_names(&self) -> Result<(), NameError> {
        self.model.check()?;
        check_names([
            (NameField::Endpoint, Some(&self.options.endpoint)),
            (NameField::ReplayEndpoint, self.options.replay_endpoint.as_deref()),
            (NameField::LoraName, self.options.lora_name.as_deref()),
        ])
    }
}

/// Outcome of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationOutcome {
    /// The rank is newly registered.
    New,
    /// The rank was registered already, with the same fields.
    Already,
}

/// Policy for a model whose last instance is unregistered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyModelPolicy {
    /// The model is removed.
    Remove,
    /// The model stays for the next registration, and is removed if that registration is rejected.
    KeepForNext,
}
