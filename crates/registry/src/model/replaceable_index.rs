//! The index of a model, replaced by an empty one after a panic.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use arc_swap::{ArcSwap, Guard};
use flash_indexer_core::groups::GroupedIndex;
use flash_indexer_core::run::{RunIndex, RunLimits};
use flash_indexer_core::{ShardedIndex, SharedIndex};
use parking_lot::Mutex;

/// An index that is replaced entirely.
///
/// A change that panics leaves an index in an unknown state: its locks are free, but its contents are not reliable. An
/// empty index of the same memory limit or the same number of shards replaces it.
///
/// # Consistency
///
/// A query that began before the replacement may still read the failed index. It never waits for the change that
/// panicked.
pub(crate) struct ReplaceableIndex {
    current: ArcSwap<GroupedIndex>,
    /// Increases by two with each replacement.
    generation: AtomicU64,
    replacing: Mutex<()>,
}

impl ReplaceableIndex {
    pub(crate) fn new(index: Box<dyn SharedIndex>) -> Self {
        let current = ArcSwap::from_pointee(GroupedIndex::new(index));
        Self { current, generation: AtomicU64::new(0), replacing: Mutex::default() }
    }

    /// The current index.
    pub(crate) fn load(&self) -> Guard<Arc<GroupedIndex>> {
        self.current.load()
    }

    /// Changes with each replacement. Blocks written in another generation are lost.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Replaces an index in which a change panicked by an empty one. False if it was replaced already.
    pub(super) fn replace(&self, failed: &Arc<GroupedIndex>) -> bool {
        let _replacing = self.replacing.lock();
        if !Arc::ptr_eq(&self.current.load(), failed) {
            return false;
        }
        let bounded = failed.memory_limit().map(|bound| RunIndex::bounded(RunLimits::default(), bound.bytes_max));
        let empty = match bounded {
            Some(bounded) => Box::new(bounded.expect("an index of this size was built before")),
            None => unbounded_index(failed.shards()),
        };
        // Incremented before and after, so a restore that begins or ends between the two also sees a change.
        self.generation.fetch_add(1, AcqRel);
        self.current.store(Arc::new(GroupedIndex::new(empty)));
        self.generation.fetch_add(1, AcqRel);
        failed.abandon();
        true
    }
}

/// An empty index without a memory limit.
pub(crate) fn unbounded_index(shards: usize) -> Box<dyn SharedIndex> {
    match shards {
        1 => Box::<RunIndex>::default(),
        _ => Box::new(ShardedIndex::new(shards, RunIndex::default)),
    }
}
