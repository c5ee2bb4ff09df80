//! An index of any design, and beside it the ranks of hybrid models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use super::rank::RankGroups;
use super::{GroupChange, RankEvent};
use crate::{
    Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, RankMatch, RankSize, SharedIndex, WorkerId,
    WorkerRank, stored_events,
};

/// An index whose ranks may have several cache groups.
///
/// # What a rank of a hybrid model holds
///
/// Its **indexed** group is told as every other rank is, by [`BlockEvent`]s, and holds what
/// [`PrefixIndex`](crate::PrefixIndex) says. Each [`FurtherGroup`](super::FurtherGroup) is a set of names with copies in
/// each tier, whether or not the indexed group holds them as well. The rank holds the first *d*
/// blocks of a query when there is a chain of names of *d* blocks, held in the indexed group, and
/// each further group holds as many of the chain's last names as it must for *d* ([`Reach`](super::Reach)).
/// A rank's answer is the largest such *d*, which need not hold for every smaller one. A tier's answer
/// uses the tier and the faster ones in every group alike.
///
/// [`oracle::GroupedOracle`](crate::oracle::GroupedOracle) says exactly this.
///
/// # Consistency
///
/// A rank belongs to the index of the chosen design until its first event of a further group, which
/// moves it; queries find it in one of the two. Of a rank with groups a query sees each event entirely
/// or not at all. Otherwise that of the design.
///
/// # Cost
///
/// Without ranks that have groups: one load for each call. A query asks each rank with groups by itself,
/// one lookup for each block that it holds of the prompt. A block costs some 150 bytes in the indexed
/// group of such a rank and some 40 bytes in each further one.
pub struct GroupedIndex {
    plain: Box<dyn SharedIndex>,
    grouped: RwLock<FxHashMap<WorkerRank, Arc<RwLock<RankGroups>>>>,
    /// Ranks in `grouped`. Stored after a rank is put in and loaded by its own writer, or by queries for
    /// which the moment at which a rank moves makes no difference.
    grouped_count: AtomicUsize,
}

impl std::fmt::Debug for GroupedIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupedIndex").field("grouped_count", &self.grouped_count).finish_non_exhaustive()
    }
}

impl GroupedIndex {
    /// Adds cache groups to an index.
    #[must_use]
    pub fn new(plain: Box<dyn SharedIndex>) -> Self {
        Self { plain, grouped: RwLock::default(), grouped_count: AtomicUsize::new(0) }
    }

    /// Applies one event of `rank`, of whichever group, and says what it changed.
    pub fn apply_event(&self, rank: WorkerRank, event: &RankEvent) -> Applied {
        match event {
            RankEvent::Indexed(event) => self.apply(rank, event),
            RankEvent::Further(change) => self.apply_group(rank, change),
        }
    }

    /// Applies one event of a further group of `rank` and says what it changed in that group. Too many
    /// groups or names are refused ([`GROUPS_MAX`](super::GROUPS_MAX), [`GROUP_BLOCKS_MAX`](super::GROUP_BLOCKS_MAX)).
    pub fn apply_group(&self, rank: WorkerRank, change: &GroupChange) -> Applied {
        let groups = self.groups_of(rank).unwrap_or_else(|| self.move_to_groups(rank));
        groups.write().apply_group(change)
    }

    /// [`SharedIndex::find`] for a prompt that ends with the query's last block.
    ///
    /// An engine computes at least the last token of a prompt, so it looks for a prefix that ends before
    /// the last block. Without cache groups that is one block less of the same. A rank with groups can
    /// hold the whole prompt and need not hold what its windows reach one block earlier: then its answer
    /// is what it can start with. Two queries if there are such ranks.
    #[must_use]
    pub fn find_prompt(&self, query: &[LocalHash]) -> MatchScores {
        let mut scores = self.find(query);
        let Some((_, but_last)) = query.split_last().filter(|_| !self.is_plain()) else { return scores };
        let startable: FxHashMap<WorkerRank, PerTier<u32>> =
            self.find(but_last).ranks.into_iter().map(|found| (found.rank, found.blocks)).collect();
        for found in &mut scores.ranks {
            let startable = startable.get(&found.rank).copied().unwrap_or_default();
            for (usable, startable) in found.blocks.0.iter_mut().zip(startable.0) {
                if *usable as usize == query.len() && (startable as usize) < but_last.len() {
                    *usable = startable;
                }
            }
        }
        scores.ranks.retain(|found| found.longest() > 0);
        scores
    }

    /// Stores that say what `rank` holds in all of its groups, taken at one moment: applied in any order,
    /// they make an empty index answer as this one does, now and after any further event. Each further
    /// group has one at least, because that it exists limits what is usable.
    #[must_use]
    pub fn dump_events(&self, rank: WorkerRank) -> Vec<RankEvent> {
        let Some(groups) = self.groups_of(rank) else {
            return self.plain.dump(rank).into_iter().map(RankEvent::Indexed).collect();
        };
        let groups = groups.read();
        let further = groups.dump_groups().into_iter().map(RankEvent::Further);
        further.chain(stored_events(groups.held()).into_iter().map(RankEvent::Indexed)).collect()
    }

    /// Whether no rank has more than one cache group.
    fn is_plain(&self) -> bool {
        self.grouped_count.load(Ordering::Acquire) == 0
    }

    fn groups_of(&self, rank: WorkerRank) -> Option<Arc<RwLock<RankGroups>>> {
        if self.is_plain() {
            return None;
        }
        self.grouped.read().get(&rank).cloned()
    }

    fn move_to_groups(&self, rank: WorkerRank) -> Arc<RwLock<RankGroups>> {
        let mut groups = RankGroups::default();
        for event in self.plain.dump(rank) {
            groups.apply(&event);
        }
        let groups = Arc::new(RwLock::new(groups));
        {
            let mut grouped = self.grouped.write();
            grouped.insert(rank, Arc::clone(&groups));
            self.grouped_count.store(grouped.len(), Ordering::Release);
        }
        // Queries that still find it there leave it out.
        self.plain.clear_rank(rank);
        groups
    }
}

impl SharedIndex for GroupedIndex {
    /// Applies one event of the indexed group; a clear empties all groups, which stay known.
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        match self.groups_of(rank) {
            None => self.plain.apply(rank, event),
            Some(groups) => groups.write().apply(event),
        }
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let mut scores = self.plain.find(query);
        if self.is_plain() {
            return scores;
        }
        let grouped = self.grouped.read();
        scores.ranks.retain(|found| !grouped.contains_key(&found.rank));
        let usable = grouped.iter().map(|(&rank, groups)| RankMatch { rank, blocks: groups.read().usable(query) });
        scores.ranks.extend(usable.filter(|found| found.longest() > 0));
        scores
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        let mut ranks = self.plain.ranks();
        if !self.is_plain() {
            let grouped = self.grouped.read();
            ranks.retain(|rank| !grouped.contains_key(rank));
            ranks.extend(grouped.iter().filter(|(_, groups)| !groups.read().is_empty()).map(|(&rank, _)| rank));
        }
        ranks
    }

    /// What the indexed group holds.
    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        match self.groups_of(rank) {
            None => self.plain.held(rank),
            Some(groups) => groups.read().held(),
        }
    }

    /// Forgets everything that `rank` holds, and that it has groups.
    fn clear_rank(&self, rank: WorkerRank) {
        if !self.is_plain() {
            let mut grouped = self.grouped.write();
            grouped.remove(&rank);
            self.grouped_count.store(grouped.len(), Ordering::Release);
        }
        self.plain.clear_rank(rank);
    }

    /// How much the indexed group holds.
    fn size(&self, rank: WorkerRank) -> RankSize {
        match self.groups_of(rank) {
            None => self.plain.size(rank),
            Some(groups) => groups.read().size(),
        }
    }

    fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
        let mut sizes = self.plain.sizes();
        if !self.is_plain() {
            let grouped = self.grouped.read();
            sizes.retain(|(rank, _)| !grouped.contains_key(rank));
            let sized = grouped.iter().map(|(&rank, groups)| (rank, groups.read().size()));
            sizes.extend(sized.filter(|(_, size)| size.blocks > 0));
        }
        sizes
    }

    fn dump(&self, rank: WorkerRank) -> Vec<BlockEvent> {
        match self.groups_of(rank) {
            None => self.plain.dump(rank),
            Some(groups) => stored_events(groups.read().held()),
        }
    }

    fn remove_worker(&self, worker: WorkerId) {
        if !self.is_plain() {
            let mut grouped = self.grouped.write();
            grouped.retain(|rank, _| rank.worker != worker);
            self.grouped_count.store(grouped.len(), Ordering::Release);
        }
        self.plain.remove_worker(worker);
    }
}
