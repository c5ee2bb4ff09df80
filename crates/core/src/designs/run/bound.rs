//! An index that keeps within a bound of memory: what is asked for, and what can be told.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;
use rustc_hash::FxHashSet;

use crate::{MemoryLimit, SequenceHash, Tier, WorkerId, WorkerRank};

/// The least that a bounded index can live with: below, its fixed parts would be most of it.
pub const INDEX_BYTES_MIN: usize = 1 << 20;

/// A bound that no index can keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes are too few for an index: give it {INDEX_BYTES_MIN} (1 MiB) at least")]
pub struct MemoryTooSmall(pub(super) usize);

/// Called with what a bounded index does not keep: blocks of which it has no copy in these tiers although their rank may.
pub type OnEvicted = Box<dyn FnMut(WorkerRank, &[Tier], &[SequenceHash]) + Send>;

/// Counters of a bounded index, for those who only read.
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

    /// The index does not have all that the rank holds. Copies the set the first time.
    pub(super) fn set_partial(&self, rank: WorkerRank) {
        self.change_partial(|partial| partial.contains(&rank), |partial| partial.insert(rank));
    }

    /// The rank holds nothing: so it has all of that.
    pub(super) fn set_whole(&self, rank: WorkerRank) {
        self.change_partial(|partial| !partial.contains(&rank), |partial| partial.remove(&rank));
    }

    /// The worker is gone.
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
