//! The trait of indexes that threads share.

use std::sync::Arc;

use crate::cursor::PrefixCursor;
use crate::{
    AppliedChanges, BlockEvent, DeepestMatches, Follower, HeldBlock, HeldReading, LocalHash, MatchScores, MemoryLimit,
    PerTier, RankMatch, RankOrder, RankSize, ReadingProgress, SequenceHash, Tier, WorkerId, WorkerRank, followers,
    stored_events, tiers,
};

/// Prefetch distance, in events: a caller announces an event this many events before applying it
/// ([`SharedIndex::prefetch`]).
pub const PREFETCH_DISTANCE: usize = 3;

/// An index that many threads read and write at once.
///
/// [`PrefixIndex`](crate::PrefixIndex) defines its content and answers.
///
/// # Consistency
///
/// The changes of one worker (`apply`, `clear_rank`, `remove_worker`) must come from one thread at a time, in the
/// order in which its engine made them; different workers may be changed concurrently. When no change is under way,
/// every answer is exact. Each design documents what a reader may see during a change. A change may wait for running
/// queries, but never for the use of their answers.
pub trait SharedIndex: Send + Sync {
    /// Applies one event of `rank` and returns what it changed.
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges;

    /// Prefetches memory for an event that will be applied [`PREFETCH_DISTANCE`] events later. Changes nothing and
    /// never blocks. The run index applies single-block events in 15% less time with it; other designs ignore it.
    fn prefetch(&self, _rank: WorkerRank, _event: &BlockEvent) {}

    /// Returns how many leading blocks of a prompt, given by local hashes, each rank holds.
    fn find(&self, query: &[LocalHash]) -> MatchScores;

    /// Returns the `count` deepest ranks of [`SharedIndex::find`] in an order. Designs that keep the order in use answer
    /// faster than `find`, so callers pass the same order until it changes.
    fn find_deepest(&self, query: &[LocalHash], count: usize, order: &Arc<RankOrder>) -> DeepestMatches {
        DeepestMatches::of(self.find(query), count, order)
    }

    /// Counts the blocks of matches by the fastest tier that holds them:
    /// [`PrefixIndex::fastest_tiers`](crate::PrefixIndex::fastest_tiers).
    fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        tiers::fastest_tiers(query, found, |found| self.held(found.rank))
    }

    /// The local hashes of the prefix with a cursor, for a query that continues it; none if the index does not have the
    /// prefix. Only the run index finds prefixes.
    fn prefix(&self, _cursor: PrefixCursor) -> Option<Vec<LocalHash>> {
        None
    }

    /// Every rank with blocks in the index, in no particular order.
    fn ranks(&self) -> Vec<WorkerRank>;

    /// Every block that `rank` holds, in no particular order.
    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock>;

    /// Copies of a block that `rank` holds in each tier. Only the run index answers without listing the rank's blocks.
    fn copies(&self, rank: WorkerRank, block: SequenceHash) -> PerTier<u32> {
        self.held(rank).iter().find(|held| held.sequence == block).map(|held| held.copies).unwrap_or_default()
    }

    /// A block of any rank with this sequence hash: its parent and its local hash, without copies. None if the index has no
    /// such block. Ranks whose sequence hashes agree share them; of ranks whose sequence hashes differ, some are searched.
    /// Only the run index finds blocks.
    fn find_block(&self, _sequence: SequenceHash) -> Option<HeldBlock> {
        None
    }

    /// The fastest tier of each of a query's blocks that `rank` holds, regardless of the blocks before it; none for the
    /// others. The list may end before the query does. A block counts if the index has its ancestors. Only the run index
    /// finds blocks after blocks that the rank does not hold, and without listing the rank's blocks.
    fn held_along(&self, rank: WorkerRank, query: &[LocalHash]) -> Vec<Option<Tier>> {
        followers::held_along(&self.held(rank), query)
    }

    /// The sequence hash of the last block of a prefix, which `rank` holds. Only the run index answers without listing the rank's
    /// blocks.
    fn sequence_along(&self, rank: WorkerRank, prefix: &[LocalHash]) -> Option<SequenceHash> {
        followers::sequence_along(&self.held(rank), prefix)
    }

    /// The blocks of `rank` whose parents it has not stored that follow one another after a block, with the query's local hashes.
    /// Only the run index answers without listing the rank's blocks.
    fn waiting_after(&self, rank: WorkerRank, parent: SequenceHash, query: &[LocalHash]) -> Vec<Follower> {
        followers::chain_after(&self.held(rank), Some(parent), query)
    }

    /// Whether `rank` holds a block, in any tier. Costs the same as [`SharedIndex::copies`].
    fn is_held(&self, rank: WorkerRank, block: SequenceHash) -> bool {
        !self.copies(rank, block).is_zero()
    }

    /// Reads about `blocks_max` further blocks that a rank holds. The caller repeats it until all are read, and applies no
    /// event of the rank meanwhile; other ranks may change. Only the run index reads in parts.
    fn read_held(&self, reading: &mut HeldReading, _blocks_max: usize) -> ReadingProgress {
        reading.set(self.held(reading.rank()))
    }

    /// Drops every block that `rank` holds. Costs as much as the rank holds, except in the run index, which defers
    /// the work ([`SharedIndex::maintain`]).
    fn clear_rank(&self, rank: WorkerRank);

    /// Size of `rank`; for all ranks at once, [`SharedIndex::sizes`].
    fn size(&self, rank: WorkerRank) -> RankSize;

    /// Every rank with blocks in the index, with its size.
    fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
        self.ranks().into_iter().map(|rank| (rank, self.size(rank))).collect()
    }

    /// Bytes that the index takes; none if the design does not measure them.
    fn memory_bytes(&self) -> Option<usize> {
        None
    }

    /// Memory limit of the index and its effects; none without a limit. Never blocks.
    fn memory_limit(&self) -> Option<MemoryLimit> {
        None
    }

    /// Does a bounded part of the work that changes have deferred, and returns whether more is left. Callers invoke
    /// it when idle, so that memory is freed without further changes. No answer depends on it. Only the run index
    /// defers work.
    fn maintain(&self) -> bool {
        false
    }

    /// Number of parts that threads change without waiting for each other. All ranks of a worker are in one part, chosen by
    /// [`shard_of`](crate::shard_of).
    fn shards(&self) -> usize {
        1
    }

    /// [`SharedIndex::maintain`] for one of [`SharedIndex::shards`].
    fn maintain_shard(&self, _shard: usize) -> bool {
        self.maintain()
    }

    /// Twins that queries skipped because one rank had more sequence hashes for a prompt than a query follows. Zero
    /// in a design that follows all.
    fn twins_skipped(&self) -> u64 {
        0
    }

    /// Changes the memory limit of a bounded index; an index without a limit is not affected. An index that exceeds
    /// the new limit copies its most valuable blocks, for which it may take `spare_bytes` in addition. Costs the
    /// blocks that are kept and evicted; changes block meanwhile.
    fn set_memory_max(&self, _bytes_max: usize, _spare_bytes: usize) {}

    /// Abandons the index after a change that panicked. No further change follows, and no query waits for the broken
    /// change to end. Answers may be wrong from then on, so the caller replaces the index first.
    fn abandon(&self) {}

    /// Stored events that make an empty index give the same answers for `rank` as this one, now and after any further
    /// event; parents come before children.
    fn dump(&self, rank: WorkerRank) -> Vec<BlockEvent> {
        stored_events(self.held(rank))
    }

    /// Drops every rank of `worker`.
    fn remove_worker(&self, worker: WorkerId) {
        let ranks = self.ranks().into_iter().filter(|rank| rank.worker == worker);
        ranks.for_each(|rank| self.clear_rank(rank));
    }
}
