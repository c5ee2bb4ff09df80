//! Registrations of ranks.

use std::num::NonZeroUsize;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, RemovedCopies};

use crate::names::{NameError, NameField, check_names};
use crate::{InstanceId, ModelKey, RankId, SharedCaches};

/// Registration of a rank: its identity, its engine's endpoints and how its messages are decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The engine instance.
    pub instance: InstanceId,
    /// The data-parallel rank.
    pub dp_rank: DpRank,
    /// Endpoint at which the engine publishes: `tcp://host:port` or `ipc://path`; `bound` if it connects to this service;
    /// [`NO_EVENTS`](crate::endpoints::NO_EVENTS) if it publishes none.
    pub endpoint: String,
    /// Endpoint at which the engine replays missing messages.
    pub replay_endpoint: Option<String>,
    /// Model and tenant.
    pub model: ModelKey,
    /// Block size in tokens.
    pub block_size: BlockSize,
    /// Adapter of blocks whose events name none.
    pub lora_name: Option<String>,
    /// Kind of the engine, which selects the decoder; without a kind, it is detected.
    pub engine: Option<&'static str>,
    /// Meaning of the engine's removals.
    pub removed_copies: RemovedCopies,
    /// Whether requests to the engine carry keys that its events lack, such as SGLang's `extra_key`. Its ranks are then
    /// never exact.
    pub extra_keys: bool,
    /// Blocks that the engine's cache has room for, if the engine publishes no events; none for the default.
    pub cache_blocks: Option<NonZeroUsize>,
    /// Caches of hosts and pools from which the engine loads blocks.
    pub shared_caches: SharedCaches,
}

impl Registration {
    /// Registration of rank 0, without replay endpoint, adapter and kind. Each removal is of one copy.
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
            cache_blocks: None,
            shared_caches: SharedCaches::default(),
        }
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
            (NameField::Endpoint, Some(&self.endpoint)),
            (NameField::ReplayEndpoint, self.replay_endpoint.as_deref()),
            (NameField::LoraName, self.lora_name.as_deref()),
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
