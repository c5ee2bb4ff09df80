//! The registered ranks, in the form that queries read.

use std::collections::BTreeMap;
use std::sync::Arc;

use flash_indexer_core::{RankOrder, WorkerId, WorkerRank};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::trust::PublishedTrust;

/// The ranks of registered instances. A rank is listed before its first block is stored.
#[derive(Debug, Default)]
pub(crate) struct ListedRanks {
    ranks: RwLock<BTreeMap<WorkerRank, Arc<PublishedTrust>>>,
    /// Made by the first query after the ranks changed.
    snapshot: RwLock<Option<Arc<RankSnapshot>>>,
}

/// The ranks at one moment.
#[derive(Debug)]
pub(crate) struct RankSnapshot {
    /// Order among equal matches: by instance, then by rank.
    pub(crate) order: Arc<RankOrder>,
    trust: FxHashMap<WorkerRank, Arc<PublishedTrust>>,
}

impl RankSnapshot {
    pub(crate) fn trust(&self, rank: WorkerRank) -> Option<&PublishedTrust> {
        self.trust.get(&rank).map(AsRef::as_ref)
    }
}

impl ListedRanks {
    /// Adds a rank, unless there are `ranks_max`.
    pub(crate) fn add_rank(&self, rank: WorkerRank, ranks_max: usize) -> Option<Arc<PublishedTrust>> {
        let trust = Arc::new(PublishedTrust::new());
        {
            let mut ranks = self.ranks.write();
            if ranks.len() >= ranks_max {
                return None;
            }
            ranks.insert(rank, Arc::clone(&trust));
        }
        self.changed();
        Some(trust)
    }

    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        self.ranks.write().retain(|rank, _| rank.worker != worker);
        self.changed();
    }

    /// All ranks, by instance and number.
    pub(crate) fn ranks(&self) -> Vec<WorkerRank> {
        self.ranks.read().keys().copied().collect()
    }

    /// The ranks as of now. Costs their number after they changed.
    pub(crate) fn snapshot(&self) -> Arc<RankSnapshot> {
        if let Some(snapshot) = self.snapshot.read().as_ref() {
            return Arc::clone(snapshot);
        }
        let mut snapshot = self.snapshot.write();
        // A change drops the snapshot afterwards, so a snapshot made from the ranks before the change does not stay.
        let made = || {
            let ranks = self.ranks.read();
            let order = RankOrder::new(ranks.keys().copied(), []);
            let trust = ranks.iter().map(|(&rank, trust)| (rank, Arc::clone(trust))).collect();
            Arc::new(RankSnapshot { order: Arc::new(order), trust })
        };
        Arc::clone(snapshot.get_or_insert_with(made))
    }

    fn changed(&self) {
        *self.snapshot.write() = None;
    }
}
