//! Owners of registered ranks.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};

use flash_indexer_types::{ModelKey, OwnedRank, Owner, RankId, Registration};
use parking_lot::Mutex;

use super::Indexer;

/// Owners of all registered ranks. Ranks that are named only by batches have no owner. Changes under the same lock as the
/// registrations.
#[derive(Debug, Default)]
pub(super) struct Owners {
    owned: Mutex<OwnedRanks>,
    changes: AtomicU64,
}

/// Ranks and their owners, with counts by model, so registering a pod does not walk all ranks.
#[derive(Debug, Default)]
struct OwnedRanks {
    ranks: BTreeMap<RankId, OwnedRank>,
    models: BTreeMap<ModelKey, OwnerCounts>,
    /// Ranks that pods registered themselves, of all models.
    pods: usize,
}

/// Number of ranks of one model, by owner.
#[derive(Debug, Default)]
struct OwnerCounts {
    pods: usize,
    others: usize,
}

impl OwnedRanks {
    fn count(&mut self, model: &ModelKey, owner: &Owner) {
        let counts = self.models.entry(model.clone()).or_default();
        match owner {
            Owner::Pod => (counts.pods, self.pods) = (counts.pods + 1, self.pods + 1),
            _ => counts.others += 1,
        }
    }

    fn discount(&mut self, model: &ModelKey, owner: &Owner) {
        let Some(counts) = self.models.get_mut(model) else { return };
        match owner {
            Owner::Pod => (counts.pods, self.pods) = (counts.pods - 1, self.pods - 1),
            _ => counts.others -= 1,
        }
        if (counts.pods, counts.others) == (0, 0) {
            self.models.remove(model);
        }
    }
}

impl Owners {
    /// Records the owner of a registration. A manual owner is not replaced.
    pub(super) fn record(&self, owner: Owner, registration: Registration) {
        let (rank, model) = (registration.rank_id(), registration.model.clone());
        let mut owned = self.owned.lock();
        match owned.ranks.entry(rank) {
            Entry::Vacant(entry) => {
                entry.insert(OwnedRank { owner: owner.clone(), registration });
                owned.count(&model, &owner);
            }
            Entry::Occupied(mut entry) if entry.get().owner != Owner::Manual => {
                let before = std::mem::replace(&mut entry.get_mut().owner, owner.clone());
                owned.count(&model, &owner);
                owned.discount(&model, &before);
            }
            Entry::Occupied(_) => {}
        }
        drop(owned);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, rank: &RankId) {
        let mut owned = self.owned.lock();
        if let Some(removed) = owned.ranks.remove(rank) {
            owned.discount(&rank.model, &removed.owner);
        }
        drop(owned);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn owner(&self, rank: &RankId) -> Option<Owner> {
        self.owned.lock().ranks.get(rank).map(|owned| owned.owner.clone())
    }

    /// Number of ranks that pods registered themselves.
    pub(super) fn pod_ranks(&self) -> usize {
        self.owned.lock().pods
    }

    /// Models whose ranks were all registered by pods themselves.
    pub(super) fn pod_models(&self) -> Vec<ModelKey> {
        let owned = self.owned.lock();
        owned.models.iter().filter(|(_, counts)| counts.others == 0).map(|(model, _)| model.clone()).collect()
    }

    /// Ranks of a model that pods registered themselves.
    pub(super) fn pods_of(&self, model: &ModelKey) -> Vec<RankId> {
        let owned = self.owned.lock();
        let of_model = owned.ranks.iter().filter(|(rank, _)| rank.model == *model);
        of_model.filter(|(_, owned)| owned.owner == Owner::Pod).map(|(rank, _)| rank.clone()).collect()
    }

    /// Name of the source of a rank, unless it was registered manually.
    pub(super) fn source(&self, rank: &RankId) -> Option<String> {
        Some(self.owner(rank)?.source()?.to_owned())
    }
}

impl Indexer {
    /// Every registered rank and its owner.
    pub fn owned_ranks(&self) -> BTreeMap<RankId, OwnedRank> {
        self.owners.owned.lock().ranks.clone()
    }

    /// A counter that changes whenever [`Indexer::owned_ranks`] may have changed.
    pub fn registrations_changed(&self) -> u64 {
        self.owners.changes.load(Ordering::Relaxed)
    }
}
