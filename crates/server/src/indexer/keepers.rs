//! Who wants which rank to be listened to.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Indexer, RankId, Registration};

/// Who keeps a rank registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// A request or the command line, of this service or of one that it took over from.
    Hand,
    /// A source of discovery, by name.
    Source(Arc<str>),
    /// A source of discovery of the service that it was taken over from.
    TakenOver,
    /// The pod itself, by connecting to this service or to one that it was taken over from.
    Pod,
}

impl Keeper {
    /// The owner of a registration, for logs.
    pub(crate) fn owner(&self) -> &str {
        match self {
            Self::Hand => "manual",
            Self::Source(name) => name,
            Self::TakenOver => "peer",
            Self::Pod => POD,
        }
    }

    /// Who keeps a rank here that has this source in the service that it is taken over from.
    pub(crate) fn taken_over(source: Option<&str>) -> Self {
        match source {
            None => Self::Hand,
            Some(POD) => Self::Pod,
            Some(_) => Self::TakenOver,
        }
    }
}

/// A registered rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Who wants it.
    pub(crate) keeper: Keeper,
    /// What it is registered with.
    pub(crate) registration: Registration,
}

/// Keepers of all ranks that were registered; ranks that only batches name have none. Changes with the
/// registrations, under the same lock.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    ranks: Mutex<BTreeMap<RankId, Kept>>,
    changes: AtomicU64,
}

impl Keepers {
    /// Somebody has registered a rank. What is wanted by hand stays so, whoever else wants it.
    pub(super) fn note(&self, keeper: Keeper, registration: Registration) {
        match self.ranks.lock().entry(RankId::of(&registration)) {
            Entry::Vacant(entry) => drop(entry.insert(Kept { keeper, registration })),
            Entry::Occupied(mut entry) if entry.get().keeper != Keeper::Hand => entry.get_mut().keeper = keeper,
            Entry::Occupied(_) => {}
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn forget(&self, rank: &RankId) {
        self.ranks.lock().remove(rank);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn keeper(&self, rank: &RankId) -> Option<Keeper> {
        self.ranks.lock().get(rank).map(|kept| kept.keeper.clone())
    }

    /// How many ranks this keeper has.
    pub(super) fn count(&self, keeper: &Keeper) -> usize {
        self.ranks.lock().values().filter(|kept| kept.keeper == *keeper).count()
    }

    /// The source that keeps a rank, if one does.
    pub(super) fn source(&self, rank: &RankId) -> Option<String> {
        match self.keeper(rank) {
            Some(Keeper::Source(source)) => Some(source.to_string()),
            Some(Keeper::TakenOver) => Some(TAKEN_OVER.to_owned()),
            Some(Keeper::Pod) => Some(POD.to_owned()),
            Some(Keeper::Hand) | None => None,
        }
    }
}

/// Shown as the source of ranks that another service had discovered.
const TAKEN_OVER: &str = "peer";
/// Shown as the source of ranks of pods that have registered themselves.
const POD: &str = "pod";

impl Indexer {
    /// Every rank that was registered, and who wants it.
    pub(crate) fn kept(&self) -> BTreeMap<RankId, Kept> {
        self.keepers.ranks.lock().clone()
    }

    /// Changes whenever [`Indexer::kept`] may have.
    pub(crate) fn registrations_changed(&self) -> u64 {
        self.keepers.changes.load(Ordering::Relaxed)
    }
}
