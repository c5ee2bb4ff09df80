//! A registered instance and the trust in its ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flash_indexer_core::{DpRank, WorkerId, WorkerRank};
use flash_indexer_ingest::{Listener, RankOwner};
use flash_indexer_types::{Trust, UnrepairedGap};

/// A registered engine instance.
pub(crate) struct Instance {
    pub worker: WorkerId,
    /// Listeners of its ranks, registered or named by a batch. Empty if the instance is known from a dump only.
    pub listeners: BTreeMap<DpRank, Arc<Listener>>,
    /// Ranks that were unregistered while other ranks keep the stream of the listener with this id. Messages that its decoder had queued no
    /// longer list them.
    pub unregistered: BTreeSet<(u64, DpRank)>,
    /// Ranks whose blocks of the listener with this id are not removed yet.
    pub removals: BTreeSet<(u64, DpRank)>,
}

/// One rank of a registered instance.
pub(crate) struct ListedRank {
    /// Index of the instance in [`ListedRanks::names`](super::instance_table::ListedRanks::names).
    pub instance: u32,
    pub rank: WorkerRank,
    pub listener: Arc<Listener>,
}

/// Trust in a rank, and the faults of its stream.
pub(crate) struct StreamStatus {
    pub trust: Trust,
    /// The last fault.
    pub last_error: Option<String>,
    /// Changes that are missing, and the position after which they are missing.
    pub gap: Option<UnrepairedGap>,
}

impl Instance {
    /// An instance without listeners.
    pub(crate) fn new(worker: WorkerId) -> Self {
        Self { worker, listeners: BTreeMap::new(), unregistered: BTreeSet::new(), removals: BTreeSet::new() }
    }

    /// Lists a rank of a stream. It is degraded while blocks that another stream stored for it are not removed.
    pub(crate) fn list(&mut self, listener: &Arc<Listener>, dp_rank: DpRank) {
        self.listeners.insert(dp_rank, Arc::clone(listener));
        let former = self.removals.iter().filter(|(id, removed)| *removed == dp_rank && *id != listener.id);
        former.for_each(|&(id, _)| listener.record_rank_move(dp_rank, id));
    }

    /// Ends the removal of the blocks of a rank, or of all ranks, of a listener. Returns the listeners that have claimed such a rank
    /// meanwhile.
    pub(super) fn end_removals(&mut self, listener: u64, dp_rank: Option<DpRank>) -> Vec<(DpRank, Arc<Listener>)> {
        let is_ended = |&(id, removed): &(u64, DpRank)| id == listener && dp_rank.is_none_or(|ended| ended == removed);
        let ended: Vec<_> = self.removals.extract_if(.., is_ended).map(|(_, removed)| removed).collect();
        let owner = |removed| Some((removed, Arc::clone(self.listeners.get(&removed)?)));
        ended.into_iter().filter_map(owner).filter(|(_, owner)| owner.id != listener).collect()
    }

    /// Whether a stream has ranks.
    pub(crate) fn has_stream(&self, listener: &Arc<Listener>) -> bool {
        self.listeners.values().any(|listed| Arc::ptr_eq(listed, listener))
    }

    /// The owner of a rank that a batch of a stream names; none for a rank that the stream may claim. A rank of another stream
    /// is degraded until either stream is unregistered.
    pub(super) fn owner(&self, listener: &Arc<Listener>, dp_rank: DpRank) -> Option<RankOwner> {
        let Some(owner) = self.listeners.get(&dp_rank) else {
            return self.unregistered.contains(&(listener.id, dp_rank)).then_some(RankOwner::SameStream);
        };
        if owner.is_same_stream(listener) {
            return Some(RankOwner::SameStream);
        }
        // The messages of an unregistered stream, or of a shadow, are in no answer.
        if self.has_stream(listener) {
            owner.record_rank_conflict(dp_rank, listener);
        }
        Some(RankOwner::OtherStream)
    }

    /// Trust in one of its ranks.
    pub(super) fn trust(&self, dp_rank: DpRank) -> Trust {
        // A rank without a listener was restored from a dump, which only gets older.
        self.listeners.get(&dp_rank).map_or(Trust::Degraded, |listener| listener.trust(dp_rank))
    }

    /// The worst trust among its ranks that have a listener and for which `counts` returns true.
    pub(crate) fn worst_trust(&self, counts: impl Fn(DpRank) -> bool) -> Option<Trust> {
        let counted = self.listeners.keys().filter(|dp_rank| counts(**dp_rank));
        counted.map(|&dp_rank| self.trust(dp_rank)).max()
    }
}
