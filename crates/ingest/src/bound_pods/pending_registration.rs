//! Pending registrations: ranks of pods that published and are not registered yet.

use flash_indexer_core::DpRank;
use flash_indexer_types::pods::PodName;

/// A request to register a rank of a pod, or to register it again with another block size.
#[derive(Debug, Clone)]
pub struct PendingRegistration {
    /// The pod and its model.
    pub name: PodName,
    /// The rank.
    pub dp_rank: DpRank,
    /// Tokens in a block, if a message contains it.
    pub block_size: Option<u32>,
    /// Reason label of the last refusal, if there was one.
    pub refused_before: Option<&'static str>,
}

/// Why a pending registration is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No message contains the block size yet. A later message may.
    BlockSizeUnknown,
    /// The pod may not be registered, or cannot be now.
    Refused {
        /// Reason label of the metric.
        reason: &'static str,
        /// Cause and what to do.
        why: String,
    },
}
