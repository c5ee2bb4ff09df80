//! Ranks whose engines hold entries that an index does not have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use rustc_hash::FxHashSet;

use crate::{WorkerId, WorkerRank};

/// Ranks with entries that were left out, evicted or refused since their caches were last empty. Their matches can be too
/// short.
///
/// A change takes constant time, unless a reader still has the set: then it copies the set once.
#[derive(Debug, Default)]
pub(crate) struct PartialRanks {
    ranks: RwLock<Arc<FxHashSet<WorkerRank>>>,
    /// Number of ranks. Queries load it first, because nearly always there is none.
    count: AtomicUsize,
}

impl PartialRanks {
    pub(crate) fn load(&self) -> Arc<FxHashSet<WorkerRank>> {
        Arc::clone(&self.ranks.read())
    }

    /// The ranks; none if there are none.
    pub(crate) fn load_any(&self) -> Option<Arc<FxHashSet<WorkerRank>>> {
        (!self.is_empty()).then(|| self.load())
    }

    pub(crate) fn insert(&self, rank: WorkerRank) {
        if !self.contains(rank) {
            self.change(|ranks| {
                ranks.insert(rank);
            });
        }
    }

    pub(crate) fn remove(&self, rank: WorkerRank) {
        if self.contains(rank) {
            self.change(|ranks| {
                ranks.remove(&rank);
            });
        }
    }

    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        if !self.is_empty() {
            self.change(|ranks| ranks.retain(|rank| rank.worker != worker));
        }
    }

    fn contains(&self, rank: WorkerRank) -> bool {
        !self.is_empty() && self.ranks.read().contains(&rank)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn change(&self, change: impl FnOnce(&mut FxHashSet<WorkerRank>)) {
        let mut ranks = self.ranks.write();
        change(Arc::make_mut(&mut ranks));
        self.count.store(ranks.len(), Ordering::Release);
    }
}
