//! A pod that nobody has registered.

use flash_indexer_core::DpRank;

use super::PodName;

/// A rank of a pod requests to be followed, or to be followed otherwise.
#[derive(Debug, Clone)]
pub struct PendingRegistration {
    /// The pod and its model.
    pub name: PodName,
    /// Its rank.
    pub dp_rank: DpRank,
    /// Tokens in its blocks, if it has said so.
    pub block_size: Option<u32>,
    /// Why it was refused the last time, if it was.
    pub refused_before: Option<&'static str>,
}

/// Why a pod is not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It has not said how large its blocks are: what it says next may tell.
    BlockSizeUnknown,
    /// It may not be, or cannot be now.
    Refused {
        /// A short name for counting.
        reason: &'static str,
        /// In full.
        why: String,
    },
}
