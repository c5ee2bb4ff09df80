//! Limit, counters and callback of an index with a memory limit.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;
use rustc_hash::FxHashSet;

use crate::{MemoryLimit, SequenceHash, Tier, WorkerId, WorkerRank};

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
    pub(super) partial: ArcSwap<FxHashSet<WorkerRank>>,
}

impl BoundCounters {
    pub(super) fn report(&self) -> MemoryLimit {
        MemoryLimit {
            bytes_max: self.bytes_max.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            bytes_highest: self.bytes_highest.load(Relaxed),
            evicted_blocks: self.evicted.load(Relaxed) as u64,
            refused_blocks: self.refused.load(Relaxed) as u64,
            partial_ranks: self.partial.load_full(),
        }
    }

    pub(super) fn set_bytes(&self, bytes: usize) {
        self.bytes.store(bytes, Relaxed);
        self.bytes_highest.fetch_max(bytes, Relaxed);
    }

    /// Marks the rank as partial: the index lacks blocks that the rank holds. Copies the set when the rank is new in
    /// it.
    pub(super) fn set_partial(&self, rank: WorkerRank) {
        self.change_partial(|partial| partial.contains(&rank), |partial| partial.insert(rank));
    }

    /// Marks the rank as complete: it holds nothing, and so does the index.
    pub(super) fn set_complete(&self, rank: WorkerRank) {
        self.change_partial(|partial| !partial.contains(&rank), |partial| partial.remove(&rank));
    }

    /// Removes the ranks of an unregistered worker.
    pub(super) fn forget_worker(&self, worker: WorkerId) {
        let is_whole = |partial: &FxHashSet<WorkerRank>| partial.iter().all(|rank| rank.worker != worker);
        self.change_partial(is_whole, |partial| {
            partial.retain(|rank| rank.worker != worker);
            true
        });
    }

    fn change_partial(
        &self,
        is_so: impl FnOnce(&FxHashSet<WorkerRank>) -> bool,
        change: impl FnOnce(&mut FxHashSet<WorkerRank>) -> bool,
    ) {
        if !is_so(&self.partial.load()) {
            let mut partial = FxHashSet::clone(&self.partial.load());
            change(&mut partial);
            self.partial.store(Arc::new(partial));
        }
    }
}
