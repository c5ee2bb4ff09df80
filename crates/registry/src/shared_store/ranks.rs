//! A model's ranks as they are shared, beside its index.

use std::sync::Arc;

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{WorkerId, WorkerRank};
use flash_indexer_redis::{PublisherWaker, RankPrefixes};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

/// Each rank that was told something, or was looked at. Fed by the model's writer with what the index is fed with.
pub(crate) struct PublishedRanks {
    maker: PublisherWaker,
    ranks: RwLock<FxHashMap<WorkerRank, Arc<RankPrefixes>>>,
}

impl PublishedRanks {
    pub(crate) fn new(maker: PublisherWaker) -> Self {
        Self { maker, ranks: RwLock::default() }
    }

    pub(crate) fn of(&self, rank: WorkerRank) -> Arc<RankPrefixes> {
        if let Some(known) = self.ranks.read().get(&rank) {
            return Arc::clone(known);
        }
        Arc::clone(self.ranks.write().entry(rank).or_insert_with(|| self.maker.new_rank()))
    }

    pub(crate) fn apply(&self, rank: WorkerRank, event: &RankEvent) {
        self.of(rank).apply(event);
    }

    pub(crate) fn clear(&self, rank: WorkerRank) {
        if let Some(cleared) = self.ranks.write().remove(&rank) {
            // Whoever publishes it may still do so for a moment.
            cleared.clear();
        }
    }

    /// Forgets every rank, also those in which a change panicked.
    pub(crate) fn clear_all(&self) {
        let ranks = std::mem::take(&mut *self.ranks.write());
        ranks.into_values().for_each(|rank| rank.clear());
    }

    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        self.ranks.write().retain(|rank, shared| {
            if rank.worker == worker {
                shared.clear();
            }
            rank.worker != worker
        });
    }
}
