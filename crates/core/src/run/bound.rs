//! Limit, counters and callback of an index with a memory limit.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::partial_ranks::PartialRanks;
use crate::{MemoryLimit, SequenceHash, Tier, WorkerRank};

/// Smallest memory limit of a bounded index, in bytes. Below it, fixed tables would be most of the index.
pub const INDEX_BYTES_MIN: usize = 1 << 20;

/// The memory limit is below [`INDEX_BYTES_MIN`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("failed to create index: a memory limit of {0} bytes is too low; set at least {INDEX_BYTES_MIN} (1 MiB)")]
pub struct MemoryTooSmall(pub(super) usize);

/// Callback for evicted and refused blocks: the index has no copy of them in these tiers although the rank may hold
/// one.
pub type OnEvicted = Box<dyn FnMut(WorkerRank, &[Tier], &[SequenceHash]) + Send>;

/// Counters of a bounded index, readable without the writer's mutex.
#[derive(Debug, Default)]
pub(super) struct BoundCounters {
    pub(super) bytes_max: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    pub(super) bytes_highest: AtomicUsize,
    pub(super) evicted: AtomicUsize,
    pub(super) refused: AtomicUsize,
    /// Ranks that hold blocks which the index lacks.
    pub(super) partial: PartialRanks,
}

impl BoundCounters {
    pub(super) fn report(&self) -> MemoryLimit {
        MemoryLimit {
            bytes_max: self.bytes_max.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            bytes_highest: self.bytes_highest.load(Relaxed),
            evicted_blocks: self.evicted.load(Relaxed) as u64,
            refused_blocks: self.refused.load(Relaxed) as u64,
            partial_ranks: self.partial.load(),
        }
    }

    pub(super) fn set_bytes(&self, bytes: usize) {
        self.bytes.store(bytes, Relaxed);
        self.bytes_highest.fetch_max(bytes, Relaxed);
    }
}
