//! An index of any design, with the cache groups of hybrid models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use rustc_hash::{FxHashMap, FxHashSet};

use super::blocks::{GroupPart, GroupReading};
use super::rank::RankGroups;
use super::{ClearScope, Cut, GroupChange, GroupEvent, RankEvent, SecondaryGroup};
use crate::cursor::PrefixCursor;
use crate::hashing::sequence_hashes;
use crate::partial_ranks::PartialRanks;
use crate::{
    AppliedChanges, BlockEvent, DeepestMatches, Follower, HeldBlock, HeldReading, LocalHash, MatchScores, MemoryLimit,
    PerTier, RankMatch, RankOrder, RankSize, ReadingProgress, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank,
};

/// An index whose ranks may have several cache groups.
///
/// # What a rank of a hybrid model holds
///
/// The **primary** group receives [`BlockEvent`]s like the cache of any other rank, and holds what
/// [`PrefixIndex`](crate::PrefixIndex) defines. Each [`SecondaryGroup`](super::SecondaryGroup) is a set of sequence
/// hashes with reference counts in each tier, independent of the primary group. The rank holds the first *d* blocks
/// of a query if the primary group has a chain of *d* sequence hashes, and each secondary group holds as many of the
/// chain's last sequence hashes as it must for *d* ([`AttentionWindow`](super::AttentionWindow)). A group whose blocks span
/// *k* blocks of the index holds every *k*-th sequence hash of the chain, and can use *d* only if *k* divides it. In a group with
/// *k* blocks in each block of the index, the last of them has that block's sequence hash, and the others are found from there
/// by [`BlockLink`](super::BlockLink)s; a block that no link shows counts as missing. A rank's answer is the largest such *d*; a
/// smaller value need not be usable. The answer for a tier uses that tier and the faster ones in every group.
///
/// [`oracle::GroupedOracle`](crate::oracle::GroupedOracle) defines this. There is one deviation: if a rank has two
/// sequence hashes for one prefix, a secondary group counts as holding the prefix if it holds either, so the answer
/// can be too high, but never too low. An engine gives a prefix two sequence hashes when an adapter is loaded again
/// under its old name.
///
/// # Consistency
///
/// That of the index's design, for each group separately: a query during an event may see it in the index and not yet
/// in the groups.
///
/// # Cost
///
/// Without ranks that have groups: one load for each call. Otherwise a query hashes the prompt's blocks once. For
/// each matching rank with groups it looks up the blocks in the windows at the end of what the primary group holds,
/// and earlier ones as long as one is missing; of blocks smaller than those of the index, at most as many as the prompt has. Besides
/// the index, a block of such a rank costs about 120 bytes, and a sequence hash in a secondary group about 40, with a link 70.
pub struct GroupedIndex {
    plain: Box<dyn SharedIndex>,
    grouped: RwLock<FxHashMap<WorkerRank, Arc<RwLock<RankGroups>>>>,
    /// Number of ranks in `grouped`. Stored after a rank is inserted. Loaded by the rank's own writer, and by queries
    /// for which the moment of insertion makes no difference.
    grouped_count: AtomicUsize,
    partial: PartialRanks,
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
        Self { plain, grouped: RwLock::default(), grouped_count: AtomicUsize::new(0), partial: PartialRanks::default() }
    }

    /// Applies one event of `rank`, of any group, and returns what it changed.
    pub fn apply_event(&self, rank: WorkerRank, event: &RankEvent) -> AppliedChanges {
        match event {
            RankEvent::Primary(event) => self.apply(rank, event),
            RankEvent::Secondary(change) => self.apply_group(rank, change),
            RankEvent::ClearedScope(scope) => {
                let removals = self.removals(rank, *scope, &self.held(rank));
                removals
                    .iter()
                    .fold(AppliedChanges::default(), |applied, event| applied + self.apply_event(rank, event))
            }
        }
    }

    /// The removals that together clear a part of the cache of `rank`, which has these secondary groups. `held` are the blocks
    /// of its primary group.
    fn removals(&self, rank: WorkerRank, scope: ClearScope, held: &[HeldBlock]) -> Vec<RankEvent> {
        let groups = self.secondary_groups(rank).into_iter().filter(|group| scope.has_secondary(group.id));
        let secondary = groups.flat_map(|group| {
            let all = self.read_group(rank, &mut GroupReading::new(group), usize::MAX);
            scope.secondary_removals(group, &all.blocks)
        });
        scope.primary_removals(held).into_iter().chain(secondary).collect()
    }

    /// Records that the engine of `rank` holds entries that this index does not have. The rank is partial until its cache is
    /// cleared.
    pub fn record_partial(&self, rank: WorkerRank) {
        self.partial.insert(rank);
    }

    /// The ranks whose matches can be too short, because the index lacks entries that their engines hold: it leaves some
    /// out, and has evicted or refused others ([`MemoryLimit`]). None if there is neither a memory limit nor such a rank.
    #[must_use]
    pub fn partial_ranks(&self) -> Option<Arc<FxHashSet<WorkerRank>>> {
        match (self.memory_limit().map(|limit| limit.partial_ranks), self.partial.load_any()) {
            (Some(evicted), Some(omitted)) => Some(Arc::new(evicted.union(&omitted).copied().collect())),
            (evicted, omitted) => evicted.or(omitted),
        }
    }

    /// The secondary groups of `rank`.
    #[must_use]
    pub fn secondary_groups(&self, rank: WorkerRank) -> Vec<SecondaryGroup> {
        self.groups_of(rank).map(|groups| groups.read().secondary_groups()).unwrap_or_default()
    }

    /// Reads the next blocks of a secondary group of `rank`: at most `blocks_max`, which is at least one. Costs as much as
    /// `blocks_max` blocks, however many the group has or had.
    #[must_use]
    pub fn read_group(&self, rank: WorkerRank, reading: &mut GroupReading, blocks_max: usize) -> GroupPart {
        self.groups_of(rank).map_or_else(GroupPart::nothing, |groups| groups.read().read(reading, blocks_max))
    }

    /// [`SharedIndex::prefetch`] for an event of any group.
    pub fn prefetch_event(&self, rank: WorkerRank, event: &RankEvent) {
        if let RankEvent::Primary(event) = event {
            self.prefetch(rank, event);
        }
    }

    /// Applies one event of a secondary group of `rank` and returns what it changed in that group. Groups and blocks
    /// beyond the limits are refused ([`GROUPS_MAX`](super::GROUPS_MAX),
    /// [`GROUP_BLOCKS_MAX`](super::GROUP_BLOCKS_MAX)).
    pub fn apply_group(&self, rank: WorkerRank, change: &GroupChange) -> AppliedChanges {
        let groups = self.groups_of(rank).unwrap_or_else(|| self.start_groups(rank));
        groups.write().apply(change)
    }

    /// [`SharedIndex::find`] for a prompt that ends with the query's last block.
    ///
    /// An engine computes at least the last token of a prompt, so it looks up a prefix that ends before the last
    /// block. Without cache groups that is one block less of the same prefix. A rank with groups can hold the whole
    /// prompt and yet lack the blocks that its windows need one block earlier. Its answer is then the prefix with
    /// which it can start. Takes two queries if there are such ranks.
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

    /// [`SharedIndex::find_deepest`] for a prompt that ends with the query's last block. Costs the complete answer if
    /// there are ranks with groups: any rank may hold more in its primary group than it can use.
    #[must_use]
    pub fn find_prompt_deepest(&self, query: &[LocalHash], count: usize, order: &Arc<RankOrder>) -> DeepestMatches {
        if self.is_plain() {
            return self.plain.find_deepest(query, count, order);
        }
        DeepestMatches::of(self.find_prompt(query), count, order)
    }

    /// Explains why the first `held` blocks of a query, all of which the primary group of `rank` holds in tiers up to
    /// `slowest`, are not all usable; none if they are.
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

    /// Stored events for the secondary groups of `rank`, taken at one moment. With those of [`SharedIndex::dump`], applied in any
    /// order, they make an empty index give the same answers as this one, now and after any further event. Each group has at
    /// least one event, because its existence alone limits the usable prefix.
    #[must_use]
    pub fn secondary_stores(&self, rank: WorkerRank) -> Vec<GroupChange> {
        self.groups_of(rank).map(|groups| groups.read().stores()).unwrap_or_default()
    }

    /// The part of an event that adds no copy to a block with a copy in the event's tier: the stores of the other blocks. Any
    /// other event is returned as it is. Costs a lookup for each stored block ([`SharedIndex::copies`]).
    #[must_use]
    pub fn without_held(&self, rank: WorkerRank, event: RankEvent) -> Vec<RankEvent> {
        match event {
            RankEvent::Primary(BlockEvent::Stored { tier, mut parent, blocks, copies }) => {
                let mut stores: Vec<RankEvent> = Vec::new();
                let mut is_continued = false;
                for block in blocks {
                    let is_held = self.copies(rank, block.sequence)[tier] > 0;
                    match stores.last_mut() {
                        _ if is_held => {}
                        Some(RankEvent::Primary(BlockEvent::Stored { blocks, .. })) if is_continued => {
                            blocks.push(block)
                        }
                        _ => {
                            let store = BlockEvent::Stored { tier, parent, blocks: vec![block], copies };
                            stores.push(RankEvent::Primary(store));
                        }
                    }
                    is_continued = !is_held;
                    parent = Some(block.sequence);
                }
                stores
            }
            RankEvent::Primary(BlockEvent::Copied { tier, mut blocks }) => {
                blocks.retain(|&block| self.copies(rank, block)[tier] == 0);
                match blocks.is_empty() {
                    true => Vec::new(),
                    false => vec![RankEvent::Primary(BlockEvent::Copied { tier, blocks })],
                }
            }
            RankEvent::Secondary(GroupChange { group, event: GroupEvent::Stored { tier, mut blocks, copies } }) => {
                if let Some(groups) = self.groups_of(rank) {
                    let groups = groups.read();
                    blocks.retain(|&block| groups.copies(group.id, block)[tier] == 0);
                }
                // A store without blocks announces the group.
                vec![RankEvent::Secondary(GroupChange { group, event: GroupEvent::Stored { tier, blocks, copies } })]
            }
            event => vec![event],
        }
    }

    /// Whether an event removes blocks from a tier in which the rank has several copies of one of them. Costs a lookup for
    /// each block ([`SharedIndex::copies`]).
    #[must_use]
    pub fn removes_several_copies(&self, rank: WorkerRank, event: &RankEvent) -> bool {
        match event {
            RankEvent::Primary(BlockEvent::Removed { tier, blocks, .. }) => {
                blocks.iter().any(|&block| self.copies(rank, block)[*tier] > 1)
            }
            RankEvent::Secondary(GroupChange { group, event: GroupEvent::Removed { tier, blocks, .. } }) => {
                let groups = self.groups_of(rank);
                let groups = groups.as_ref().map(|groups| groups.read());
                groups.is_some_and(|groups| blocks.iter().any(|&block| groups.copies(group.id, block)[*tier] > 1))
            }
            _ => false,
        }
    }

    /// Whether a rank has secondary groups.
    #[must_use]
    pub fn has_groups(&self, rank: WorkerRank) -> bool {
        !self.is_plain() && self.grouped.read().contains_key(&rank)
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

    /// Adds cache groups to a rank that had none.
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
    /// Applies one event of the primary group. A clear empties all groups, but keeps them.
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        let groups = self.groups_of(rank);
        // Held across both changes, so that a dump sees both or neither.
        let mut groups = groups.as_ref().map(|groups| groups.write());
        let applied = self.plain.apply(rank, event);
        if matches!(event, BlockEvent::Cleared) {
            self.partial.remove(rank);
        }
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

    fn find_deepest(&self, query: &[LocalHash], count: usize, order: &Arc<RankOrder>) -> DeepestMatches {
        if self.is_plain() {
            return self.plain.find_deepest(query, count, order);
        }
        DeepestMatches::of(self.find(query), count, order)
    }

    /// The prefix as the primary group has it.
    fn prefix(&self, cursor: PrefixCursor) -> Option<Vec<LocalHash>> {
        self.plain.prefix(cursor)
    }

    /// Counts blocks of the primary group. Secondary groups may hold them in other tiers.
    fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        self.plain.fastest_tiers(query, found)
    }

    /// Every rank whose primary group holds blocks.
    fn ranks(&self) -> Vec<WorkerRank> {
        self.plain.ranks()
    }

    /// Blocks of the primary group.
    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.plain.held(rank)
    }

    fn copies(&self, rank: WorkerRank, block: SequenceHash) -> PerTier<u32> {
        self.plain.copies(rank, block)
    }

    fn find_block(&self, sequence: SequenceHash) -> Option<HeldBlock> {
        self.plain.find_block(sequence)
    }

    /// Blocks of the primary group.
    fn held_along(&self, rank: WorkerRank, query: &[LocalHash]) -> Vec<Option<Tier>> {
        self.plain.held_along(rank, query)
    }

    fn sequence_along(&self, rank: WorkerRank, prefix: &[LocalHash]) -> Option<SequenceHash> {
        self.plain.sequence_along(rank, prefix)
    }

    fn waiting_after(&self, rank: WorkerRank, parent: SequenceHash, query: &[LocalHash]) -> Vec<Follower> {
        self.plain.waiting_after(rank, parent, query)
    }

    fn read_held(&self, reading: &mut HeldReading, blocks_max: usize) -> ReadingProgress {
        self.plain.read_held(reading, blocks_max)
    }

    /// Drops every block of `rank`, and its groups.
    fn clear_rank(&self, rank: WorkerRank) {
        self.plain.clear_rank(rank);
        self.partial.remove(rank);
        if !self.is_plain() {
            // Their memory is freed after the lock is released, so that queries need not wait for it.
            let mut removed = None;
            self.change_groups(|grouped| removed = grouped.remove(&rank));
        }
    }

    /// Size of the primary group.
    fn size(&self, rank: WorkerRank) -> RankSize {
        self.plain.size(rank)
    }

    fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
        self.plain.sizes()
    }

    fn maintain(&self) -> bool {
        self.plain.maintain()
    }

    fn shards(&self) -> usize {
        self.plain.shards()
    }

    fn maintain_shard(&self, shard: usize) -> bool {
        self.plain.maintain_shard(shard)
    }

    /// Memory of the index, and of the cache groups of its ranks. Costs the number of ranks with cache groups, and waits
    /// for at most one event of each.
    fn memory_bytes(&self) -> Option<usize> {
        let bytes = self.plain.memory_bytes()?;
        Some(bytes + self.grouped.read().values().map(|groups| groups.read().bytes()).sum::<usize>())
    }

    fn set_memory_max(&self, bytes_max: usize, spare_bytes: usize) {
        self.plain.set_memory_max(bytes_max, spare_bytes);
    }

    /// Memory limit of the primary group.
    fn memory_limit(&self) -> Option<MemoryLimit> {
        self.plain.memory_limit()
    }

    fn twins_skipped(&self) -> u64 {
        self.plain.twins_skipped()
    }

    fn abandon(&self) {
        self.plain.abandon();
    }

    fn remove_worker(&self, worker: WorkerId) {
        self.plain.remove_worker(worker);
        self.partial.remove_worker(worker);
        if !self.is_plain() {
            let mut removed = Vec::new();
            self.change_groups(|grouped| removed.extend(grouped.extract_if(|rank, _| rank.worker == worker)));
        }
    }
}
