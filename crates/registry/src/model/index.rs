//! The index of a model, which can be replaced by an empty one.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use arc_swap::{ArcSwap, Guard};
use flash_indexer_core::SharedIndex;
use flash_indexer_core::groups::GroupedIndex;
use flash_indexer_core::run::{RunIndex, RunLimits};
use parking_lot::Mutex;

/// The index of a model.
///
/// A change that panics leaves an index in an unknown state: locks are free, and yet nothing in it can be relied on. So the
/// index is replaced by an empty one of the same bound of memory.
///
/// # Consistency
///
/// A query that began before the replacement may still answer from the index that is given up; it never waits for the
/// change that panicked.
pub(crate) struct ReplaceableIndex {
    current: ArcSwap<GroupedIndex>,
    /// Rises by two with each index that is given up.
    generation: AtomicU64,
    replacing: Mutex<()>,
}

impl ReplaceableIndex {
    pub(crate) fn new(index: Box<dyn SharedIndex>) -> Self {
        let current = ArcSwap::from_pointee(GroupedIndex::new(index));
        Self { current, generation: AtomicU64::new(0), replacing: Mutex::default() }
    }

    /// The index of now.
    pub(crate) fn load(&self) -> Guard<Arc<GroupedIndex>> {
        self.current.load()
    }

    /// Changes with each replacement: what was put into the index of another generation is lost.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Puts an empty index in the place of one in which a change panicked; false if that was done already.
    pub(super) fn replace(&self, failed: &Arc<GroupedIndex>) -> bool {
        let _replacing = self.replacing.lock();
        if !Arc::ptr_eq(&self.current.load(), failed) {
            return false;
        }
        let bounded = failed.memory_limit().map(|bound| RunIndex::bounded(RunLimits::default(), bound.bytes_max));
        let empty = bounded.map_or_else(RunIndex::default, |bounded| bounded.expect("the failed index had this bound"));
        // Before and after: a restore that begins or ends between the two finds another generation as well.
        self.generation.fetch_add(1, AcqRel);
        self.current.store(Arc::new(GroupedIndex::new(Box::new(empty))));
        self.generation.fetch_add(1, AcqRel);
        failed.abandon();
        true
    }
}
