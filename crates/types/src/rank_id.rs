//! Identity of a rank in a fleet.

use std::fmt;

use flash_indexer_core::DpRank;

use crate::{InstanceId, ModelKey};

/// Data-parallel rank of an instance that serves a model of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RankId {
    /// Model and tenant.
    pub model: ModelKey,
    /// The instance.
    pub instance: InstanceId,
    /// The rank.
    pub dp_rank: DpRank,
}

impl fmt::Display for RankId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instance {} rank {} of {}", self.instance, self.dp_rank, self.model)
    }
}
