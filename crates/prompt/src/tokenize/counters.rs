//! The counters of a pool.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::error::FailureReason;
use super::pieces::{Cutting, PieceStatistics};

/// Counters and current sizes of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolStatistics {
    /// Prompts in the queue now.
    pub queued: usize,
    /// Bytes of the prompts in the queue now.
    pub queued_bytes: usize,
    /// Tokenizers that are loaded now.
    pub loaded: usize,
    /// Prompts that were tokenized.
    pub done: u64,
    /// Prompts that failed, by reason. Includes prompts that the full queue rejected.
    pub failed: BTreeMap<FailureReason, u64>,
    /// Prompts whose tokenizer was loaded.
    pub cache_hits: u64,
    /// Prompts whose tokenizer was not loaded. Includes prompts that waited for another thread's load.
    pub cache_misses: u64,
    /// Prompts of models that were cached as missing.
    pub cache_negative_hits: u64,
    /// Loaded tokenizers that were evicted.
    pub cache_evictions: u64,
    /// Loaded tokenizers that were dropped because their files had changed.
    pub cache_outdated: u64,
    /// Tokenizers that were loaded.
    pub loads: u64,
    /// Loads that failed in every source.
    pub loads_failed: u64,
    /// Callbacks that panicked.
    pub callbacks_panicked: u64,
    /// Searches of a directory that ended early at a limit.
    pub limits_reached: u64,
    /// The cache of tokenized pieces.
    pub pieces: PieceStatistics,
    /// Tokenizers that were loaded, by where their texts are cut, in the order of [`Cutting::ALL`].
    pub cuttings: [u64; Cutting::ALL.len()],
}

impl PoolStatistics {
    pub(super) fn count_failure(&mut self, reason: FailureReason) {
        *self.failed.entry(reason).or_default() += 1;
    }
}

/// The counters of a pool. Its current sizes stay zero here.
pub(super) type Counters = Mutex<PoolStatistics>;
