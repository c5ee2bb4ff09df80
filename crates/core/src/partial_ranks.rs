//! Ranks whose engines hold entries that an index does not have.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustc_hash::FxHashSet;

use crate::{WorkerId, WorkerRank};

/// Ranks with entries that were left out, evicted or refused since their caches were last empty. Their matches can be too
/// short. Reads take no lock; a change copies the set.
#[derive(Debug, Default)]
pub(crate) struct PartialRanks(ArcSwap<FxHashSet<WorkerRank>>);

impl PartialRanks {
    pub(crate) fn load(&self) -> Arc<FxHashSet<WorkerRank>> {
        self.0.load_full()
    }

    /// The ranks; none if there are none, which is nearly always so.
    pub(crate) fn load_any(&self) -> Option<Arc<FxHashSet<WorkerRank>>> {
        let ranks = self.0.load();
        (!ranks.is_empty()).then(|| Arc::clone(&ranks))
    }

    pub(crate) fn insert(&self, rank: WorkerRank) {
        if !self.0.load().contains(&rank) {
            self.change(|ranks| ranks.extend([rank]));
        }
    }

    pub(crate) fn remove(&self, rank: WorkerRank) {
        if self.0.load().contains(&rank) {
            self.change(|ranks| ranks.retain(|partial| *partial != rank));
        }
    }

    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        if self.0.load().iter().any(|rank| rank.worker == worker) {
            self.change(|ranks| ranks.retain(|rank| rank.worker != worker));
        }
    }

    fn change(&self, change: impl Fn(&mut FxHashSet<WorkerRank>)) {
        self.0.rcu(|ranks| {
            let mut ranks = FxHashSet::clone(ranks);
            change(&mut ranks);
            ranks
        });
    }
}
