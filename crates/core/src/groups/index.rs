//! An index of any design, and beside it the ranks of hybrid models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use super::rank::RankGroups;
use super::{Cut, GroupChange, RankEvent};
use crate::hashing::sequence_hashes;
use crate::{
    Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, MemoryLimit, PerTier, RankMatch, RankSize, SharedIndex,
    Tier, WorkerId, WorkerRank,
};

/// An index whose ranks may have several cache groups.
///
/// # What a rank of a hybrid model holds
///
/// Its **indexed** group is told as every other rank is, by [`BlockEvent`]s, and holds what
/// [`PrefixIndex`](crate::PrefixIndex) says. Each [`SecondaryGroup`](super::SecondaryGroup) is a set of
/// names with copies in each tier, whether or not the indexed group holds them as well. The rank holds
/// the first *d* blocks of a query when there is a chain of names of *d* blocks, held in the indexed
/// group, and each further group holds as many of the chain's last names as it must for *d*
/// ([`AttentionWindow`](super::AttentionWindow)). A rank's answer is the largest such *d*, which need not hold for every
/// smaller one. A tier's answer uses the tier and the faster ones in every group alike.
///
/// [`oracle::GroupedOracle`](crate::oracle::GroupedOracle) says exactly this. One thing is not told
/// apart: where a rank has two names for one prefix, a further group is taken to hold that prefix when
/// it holds either, so that the answer can be too high (never too low). An engine names a prefix twice
/// when an adapter is loaded again under its old name.
///
/// # Consistency
///
/// That of the index's design, for each group: a query that meets an event can see it in the index and
/// not yet in the groups.
///
/// # Cost
///
/// Without ranks that have groups: one load for each call. A query hashes the prompt's blocks once and
/// looks up, for each matching rank with groups, the blocks that its windows reach from the end of what
/// the indexed group holds, and those before them as long as one is missing. Beside what the index
/// needs, a block of such a rank costs some 120 bytes, and a name in a further group some 40.
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
            RankEvent::Secondary(change) => self.apply_group(rank, change),
        }
    }

    /// [`SharedIndex::prefetch`] for an event of whichever group.
    pub fn prefetch_event(&self, rank: WorkerRank, event: &RankEvent) {
        if let RankEvent::Indexed(event) = event {
            self.prefetch(rank, event);
        }
    }

    /// Applies one event of a further group of `rank` and says what it changed in that group. Too many
    /// groups or names are refused ([`GROUPS_MAX`](super::GROUPS_MAX), [`GROUP_BLOCKS_MAX`](super::GROUP_BLOCKS_MAX)).
    pub fn apply_group(&self, rank: WorkerRank, change: &GroupChange) -> Applied {
        let groups = self.groups_of(rank).unwrap_or_else(|| self.start_groups(rank));
        groups.write().apply(change)
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

    /// Where the further groups of `rank` cut off the first `held` blocks of a query, all of which its indexed group
    /// holds when tiers up to `slowest` are used; none where they do not.
    #[must_use]
    pub fn cut(&self, rank: WorkerRank, query: &[LocalHash], held: u32, slowest: Tier) -> Option<Cut> {
        let groups = self.groups_of(rank)?;
        let prefixes: Vec<_> = sequence_hashes(query.get(..held as usize)?).collect();
        groups.read().cut(held, slowest, &prefixes)
    }

    /// The same for a prompt that ends with the query's last block, as [`GroupedIndex::find_prompt`] answers it.
    #[must_use]
    pub fn cut_prompt(&self, rank: WorkerRank, query: &[LocalHash], held: u32, slowest: Tier) -> Option<Cut> {
        let is_whole = held as usize == query.len() && held > 0;
        let startable = || is_whole.then(|| self.cut(rank, query, held - 1, slowest)).flatten();
        self.cut(rank, query, held, slowest).or_else(startable)
    }

    /// Stores that say what `rank` holds in all of its groups, taken at one moment: applied in any order,
    /// they make an empty index answer as this one does, now and after any further event. Each further
    /// group has one at least, because that it exists limits what is usable.
    #[must_use]
    pub fn dump_events(&self, rank: WorkerRank) -> Vec<RankEvent> {
        let groups = self.groups_of(rank);
        let groups = groups.as_ref().map(|groups| groups.read());
        let secondary = groups.as_ref().map(|groups| groups.stores()).unwrap_or_default();
        let indexed = self.plain.dump(rank).into_iter().map(RankEvent::Indexed);
        secondary.into_iter().map(RankEvent::Secondary).chain(indexed).collect()
    }

    /// The part of [`GroupedIndex::dump_events`] that is about the further groups.
    #[must_use]
    pub fn secondary_stores(&self, rank: WorkerRank) -> Vec<GroupChange> {
        self.groups_of(rank).map(|groups| groups.read().stores()).unwrap_or_default()
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

    /// The rank has another group from now on.
    fn start_groups(&self, rank: WorkerRank) -> Arc<RwLock<RankGroups>> {
        let mut groups = RankGroups::default();
        self.plain.dump(rank).iter().for_each(|event| groups.apply_indexed(event));
        let groups = Arc::new(RwLock::new(groups));
        self.change_groups(|grouped| drop(grouped.insert(rank, Arc::clone(&groups))));
        groups
    }

    fn change_groups(&self, change: impl FnOnce(&mut FxHashMap<WorkerRank, Arc<RwLock<RankGroups>>>)) {
        let mut grouped = self.grouped.write();
        change(&mut grouped);
        self.grouped_count.store(grouped.len(), Ordering::Release);
    }
}

impl SharedIndex for GroupedIndex {
    /// Applies one event of the indexed group; a clear empties all groups, which stay known.
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        let groups = self.groups_of(rank);
        // Held across both changes, for those who dump the rank.
        let mut groups = groups.as_ref().map(|groups| groups.write());
        let applied = self.plain.apply(rank, event);
        if let Some(groups) = &mut groups {
            groups.apply_indexed(event);
        }
        applied
    }

    fn prefetch(&self, rank: WorkerRank, event: &BlockEvent) {
        self.plain.prefetch(rank, event);
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let mut scores = self.plain.find(query);
        if self.is_plain() {
            return scores;
        }
        let grouped = self.grouped.read();
        let mut prefixes = Vec::new();
        for found in &mut scores.ranks {
            let Some(groups) = grouped.get(&found.rank) else { continue };
            if prefixes.is_empty() {
                prefixes.extend(sequence_hashes(query));
            }
            groups.read().limit_to_usable(&mut found.blocks, &prefixes);
        }
        scores.ranks.retain(|found| found.longest() > 0);
        scores
    }

    /// Where the blocks lie in the indexed group. What further groups hold of them may lie in other tiers.
    fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        self.plain.fastest_tiers(query, found)
    }

    /// Every rank whose indexed group holds something.
    fn ranks(&self) -> Vec<WorkerRank> {
        self.plain.ranks()
    }

    /// What the indexed group holds.
    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.plain.held(rank)
    }

    /// Forgets everything that `rank` holds, and that it has groups.
    fn clear_rank(&self, rank: WorkerRank) {
        self.plain.clear_rank(rank);
        if !self.is_plain() {
            // What they hold is given back when queries need not wait for it.
            let mut removed = None;
            self.change_groups(|grouped| removed = grouped.remove(&rank));
        }
    }

    /// How much the indexed group holds.
    fn size(&self, rank: WorkerRank) -> RankSize {
        self.plain.size(rank)
    }

    fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
        self.plain.sizes()
    }

    fn maintain(&self) -> bool {
        self.plain.maintain()
    }

    /// What the indexed group takes.
    fn memory_bytes(&self) -> Option<usize> {
        self.plain.memory_bytes()
    }

    fn set_memory_max(&self, bytes_max: usize, spare_bytes: usize) {
        self.plain.set_memory_max(bytes_max, spare_bytes);
    }

    /// What bounds what the indexed group takes.
    fn memory_limit(&self) -> Option<MemoryLimit> {
        self.plain.memory_limit()
    }

    fn twins_skipped(&self) -> u64 {
        self.plain.twins_skipped()
    }

    fn abandon(&self) {
        self.plain.abandon();
    }

    fn dump(&self, rank: WorkerRank) -> Vec<BlockEvent> {
        self.plain.dump(rank)
    }

    fn remove_worker(&self, worker: WorkerId) {
        self.plain.remove_worker(worker);
        if !self.is_plain() {
            let mut removed = Vec::new();
            self.change_groups(|grouped| removed.extend(grouped.extract_if(|rank, _| rank.worker == worker)));
        }
    }
}
