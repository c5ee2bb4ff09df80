//! A model's ranks as published to the shared store.

use std::sync::Arc;

use flash_indexer_core::{WorkerId, WorkerRank};
use flash_indexer_redis::{PublisherWaker, RankPrefixes};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

/// Published ranks of one model, created on first use. The model's writer applies to them every event that it applies
/// to the index.
pub(crate) struct PublishedRanks {
    maker: PublisherWaker,
    ranks: RwLock<FxHashMap<WorkerRank, Arc<RankPrefixes>>>,
}

impl PublishedRanks {
    pub(crate) fn new(maker: PublisherWaker) -> Self {
        Self { maker, ranks: RwLock::default() }
    }

    /// The published rank, created if it does not exist.
    pub(crate) fn get_or_create(&self, rank: WorkerRank) -> Arc<RankPrefixes> {
        if let Some(existing) = self.ranks.read().get(&rank) {
            return Arc::clone(existing);
        }
        Arc::clone(self.ranks.write().entry(rank).or_insert_with(|| self.maker.new_rank()))
    }

    pub(crate) fn clear(&self, rank: WorkerRank) {
        if let Some(cleared) = self.ranks.write().remove(&rank) {
            // The publisher may still hold a reference to it for a moment.
            cleared.remove();
        }
    }

    /// Clears every rank, including ranks in which a change panicked.
    pub(crate) fn clear_all(&self) {
        let ranks = std::mem::take(&mut *self.ranks.write());
        ranks.into_values().for_each(|rank| rank.remove());
    }

    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        self.ranks.write().retain(|rank, published| {
            if rank.worker == worker {
                published.remove();
            }
            rank.worker != worker
        });
    }
}
