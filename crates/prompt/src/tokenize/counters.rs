//! The counters of a pool.

use std::sync::atomic::{AtomicU64, Ordering};

use super::error::FailureReason;
use super::pieces::{Cutting, PieceStatistics};

/// Counters and current sizes of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStatistics {
    /// Prompts in the queue now.
    pub queued: usize,
    /// Bytes of the prompts in the queue now.
    pub queued_bytes: usize,
    /// Tokenizers that are loaded now.
    pub loaded: usize,
    /// Prompts that were tokenized.
    pub done: u64,
    /// Prompts that failed, in the order of [`FailureReason::ALL`]. Includes prompts that the full queue rejected.
    pub failed: [u64; FailureReason::ALL.len()],
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
    /// Number of prompts that failed for one reason.
    #[must_use]
    pub fn failed_for(&self, reason: FailureReason) -> u64 {
        self.failed[reason as usize]
    }
}

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters behind [`PoolStatistics`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) done: Counter,
    failed: [Counter; FailureReason::ALL.len()],
    pub(super) cache_hits: Counter,
    pub(super) cache_misses: Counter,
    pub(super) cache_negative_hits: Counter,
    pub(super) cache_evictions: Counter,
    pub(super) cache_outdated: Counter,
    pub(super) loads: Counter,
    pub(super) loads_failed: Counter,
    pub(super) callbacks_panicked: Counter,
    pub(super) cuttings: [Counter; Cutting::ALL.len()],
}

impl Counters {
    pub(super) fn failed(&self, reason: FailureReason) {
        self.failed[reason as usize].add_one();
    }

    /// Reads the counters. The current sizes stay zero.
    pub(super) fn read(&self) -> PoolStatistics {
        PoolStatistics {
            done: self.done.get(),
            failed: std::array::from_fn(|reason| self.failed[reason].get()),
            cache_hits: self.cache_hits.get(),
            cache_misses: self.cache_misses.get(),
            cache_negative_hits: self.cache_negative_hits.get(),
            cache_evictions: self.cache_evictions.get(),
            cache_outdated: self.cache_outdated.get(),
            loads: self.loads.get(),
            loads_failed: self.loads_failed.get(),
            callbacks_panicked: self.callbacks_panicked.get(),
            cuttings: std::array::from_fn(|cutting| self.cuttings[cutting].get()),
            ..PoolStatistics::default()
        }
    }
}
