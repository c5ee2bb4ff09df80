//! Registrations of ranks.

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, RemovedCopies};

use crate::names::{NameError, NameField, check_names};
use crate::{InstanceId, ModelKey, RankId};

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

    /// The rank that it registers.
    #[must_use]
    pub fn rank_id(&self) -> RankId {
        RankId { model: self.model.clone(), instance: self.instance.clone(), dp_rank: self.dp_rank }
    }

    /// Refuses names and endpoints that are too long.
    pub fn check_names(&self) -> Result<(), NameError> {
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

/// What happens to a model when its last instance is unregistered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyModelPolicy {
    /// The model is removed.
    Remove,
    /// The model stays until the next registration for it, and is removed if that is refused.
    KeepForNext,
}
