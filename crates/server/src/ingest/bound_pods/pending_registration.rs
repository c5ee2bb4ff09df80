//! A pod that nobody has registered.

use flash_indexer_core::DpRank;

use super::PodName;

/// A rank of a pod asks to be followed, or to be followed otherwise.
#[derive(Debug, Clone)]
pub(crate) struct PendingRegistration {
    pub(crate) name: PodName,
    pub(crate) dp_rank: DpRank,
    /// Tokens in its blocks, if it has said so.
    pub(crate) block_size: Option<u32>,
    /// Why it was refused the last time, if it was.
    pub(crate) refused_before: Option<&'static str>,
}

/// Why a pod is not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
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
