//! Who wants which rank to be listened to.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Indexer;
use flash_indexer_types::{ModelKey, OwnedRank, Owner, RankId, Registration};

/// Owners of all ranks that were registered; ranks that only batches name have none. Changes with the
/// registrations, under the same lock.
#[derive(Debug, Default)]
pub(super) struct Owners {
    kept: Mutex<OwnedRanks>,
    changes: AtomicU64,
}

/// The ranks, and by model how many of them pods registered themselves, so that a new pod costs no walk over all ranks.
#[derive(Debug, Default)]
struct OwnedRanks {
    ranks: BTreeMap<RankId, OwnedRank>,
    models: BTreeMap<ModelKey, OwnerCounts>,
    /// Ranks that pods registered themselves, of all models.
    pods: usize,
}

/// Ranks of one model.
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
    /// Somebody has registered a rank. What is wanted by hand stays so, whoever else wants it.
    pub(super) fn note(&self, owner: Owner, registration: Registration) {
        let (rank, model) = (registration.rank_id(), registration.model.clone());
        let mut kept = self.kept.lock();
        match kept.ranks.entry(rank) {
            Entry::Vacant(entry) => {
                entry.insert(OwnedRank { owner: owner.clone(), registration });
                kept.count(&model, &owner);
            }
            Entry::Occupied(mut entry) if entry.get().owner != Owner::Manual => {
                let before = std::mem::replace(&mut entry.get_mut().owner, owner.clone());
                kept.count(&model, &owner);
                kept.discount(&model, &before);
            }
            Entry::Occupied(_) => {}
        }
        drop(kept);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn forget(&self, rank: &RankId) {
        let mut kept = self.kept.lock();
        if let Some(removed) = kept.ranks.remove(rank) {
            kept.discount(&rank.model, &removed.owner);
        }
        drop(kept);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn owner(&self, rank: &RankId) -> Option<Owner> {
        self.kept.lock().ranks.get(rank).map(|kept| kept.owner.clone())
    }

    /// How many ranks pods registered themselves.
    pub(super) fn pod_ranks(&self) -> usize {
        self.kept.lock().pods
    }

    /// Models that have no other ranks than those that pods registered themselves.
    pub(super) fn pod_models(&self) -> Vec<ModelKey> {
        let kept = self.kept.lock();
        kept.models.iter().filter(|(_, counts)| counts.others == 0).map(|(model, _)| model.clone()).collect()
    }

    /// Ranks of a model that pods registered themselves.
    pub(super) fn pods_of(&self, model: &ModelKey) -> Vec<RankId> {
        let kept = self.kept.lock();
        let of_model = kept.ranks.iter().filter(|(rank, _)| rank.model == *model);
        of_model.filter(|(_, kept)| kept.owner == Owner::Pod).map(|(rank, _)| rank.clone()).collect()
    }

    /// The source that keeps a rank, if one does.
    pub(super) fn source(&self, rank: &RankId) -> Option<String> {
        Some(self.owner(rank)?.source()?.to_owned())
    }
}

impl Indexer {
    /// Every rank that was registered, and who wants it.
    pub fn kept(&self) -> BTreeMap<RankId, OwnedRank> {
        self.owners.kept.lock().ranks.clone()
    }

    /// Changes whenever [`Indexer::kept`] may have.
    pub fn registrations_changed(&self) -> u64 {
        self.owners.changes.load(Ordering::Relaxed)
    }
}
