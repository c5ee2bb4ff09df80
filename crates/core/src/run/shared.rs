//! The run index behind the trait of concurrent indexes.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::answers::ResolvedRanks;
use super::find::{find_depths, until_unchanged};
use super::prefix::prefix;
use super::published::Published;
use super::scratch::Scratch;
use super::{COPIED_WITH_EVENT, COPIED_WITH_MAINTENANCE, RunIndex, WAITING_LISTED_WITH_EVENT_MAX};
use crate::cursor::PrefixCursor;
use crate::{
    AppliedChanges, BlockEvent, DeepestMatches, Follower, HeldBlock, HeldReading, LocalHash, MatchScores, MemoryLimit,
    PerTier, RankMatch, RankOrder, RankSize, ReadingProgress, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank,
    tiers,
};

/// Runs that one maintenance call visits.
const VISITED_WITH_MAINTENANCE: usize = 512;
/// Matches whose tiers one lock of the writer resolves.
const MATCHES_PER_LOCK: usize = 64;

thread_local! {
    /// Buffers that the queries of a thread reuse.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl RunIndex {
    /// Answers a query from its depths by holder. The answer of an abandoned index is empty.
    #[inline]
    fn answer<T: Default>(&self, query: &[LocalHash], convert: impl Fn(&ResolvedRanks, &mut Scratch) -> T) -> T {
        SCRATCH.with_borrow_mut(|scratch| {
            let found = self.with_ranks(|published, resolved| {
                find_depths(published, query, scratch)?;
                Ok(convert(resolved, scratch))
            });
            let Some(found) = found else { return T::default() };
            self.record_use(scratch);
            found
        })
    }
}

impl SharedIndex for RunIndex {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        let mut writer = self.writer.lock();
        let applied = writer.apply(rank, event);
        if let Some(compaction) = &mut writer.compaction {
            compaction.follow(rank, event);
        }
        if applied.refused > 0 {
            // The copy might have had room for the refused blocks, so it could differ.
            writer.abandon_copy();
        }
        if matches!(event, BlockEvent::Removed { .. }) {
            self.compact_if_sparse(&mut writer, COPIED_WITH_EVENT, WAITING_LISTED_WITH_EVENT_MAX);
        }
        applied
    }

    /// Does nothing while another thread writes.
    fn prefetch(&self, rank: WorkerRank, event: &BlockEvent) {
        if let Some(mut writer) = self.writer.try_lock() {
            writer.prefetch(rank, event);
        }
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        self.answer(query, ResolvedRanks::scores)
    }

    /// Merges the holders as `find` does, and then compares a match only if it is as deep as those selected before.
    fn find_deepest(&self, query: &[LocalHash], count: usize, order: &Arc<RankOrder>) -> DeepestMatches {
        self.answer(query, |resolved, scratch| resolved.deepest(scratch, count, &self.resolved_order(resolved, order)))
    }

    /// Finds every prefix that one rank holds completely, unless it consists of more than 65,536 runs. Costs its blocks.
    fn prefix(&self, cursor: PrefixCursor) -> Option<Vec<LocalHash>> {
        prefix(&self.published.load(), cursor)
    }

    /// Takes the writer's mutex if a match is longer in slower tiers. Resolves a few matches at a time, so that the
    /// writer is not blocked for long either.
    fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        let in_device: Option<Vec<_>> = found.iter().map(tiers::in_device).collect();
        in_device.unwrap_or_else(|| {
            let turns = found.chunks(MATCHES_PER_LOCK);
            turns.flat_map(|found| self.writer.lock().fastest_tiers(query, found)).collect()
        })
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.sizes().into_iter().map(|(rank, _)| rank).collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.writer.lock().held(rank)
    }

    fn copies(&self, rank: WorkerRank, block: SequenceHash) -> PerTier<u32> {
        self.writer.lock().copies_of(rank, block)
    }

    /// Takes the writer's mutex. Searches the directories of at most 256 hash domains.
    fn find_block(&self, sequence: SequenceHash) -> Option<HeldBlock> {
        self.writer.lock().find_block(sequence)
    }

    /// Takes the writer's mutex.
    fn held_along(&self, rank: WorkerRank, query: &[LocalHash]) -> Vec<Option<Tier>> {
        self.writer.lock().held_along(rank, query)
    }

    /// Takes the writer's mutex.
    fn sequence_along(&self, rank: WorkerRank, prefix: &[LocalHash]) -> Option<SequenceHash> {
        self.writer.lock().sequence_along(rank, prefix)
    }

    /// Takes the writer's mutex.
    fn waiting_after(&self, rank: WorkerRank, parent: SequenceHash, query: &[LocalHash]) -> Vec<Follower> {
        self.writer.lock().waiting_after(rank, parent, query)
    }

    fn read_held(&self, reading: &mut HeldReading, blocks_max: usize) -> ReadingProgress {
        self.writer.lock().read_held(reading, blocks_max)
    }

    fn clear_rank(&self, rank: WorkerRank) {
        self.apply(rank, &BlockEvent::Cleared);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        let size = |published: &Published, resolved: &ResolvedRanks| {
            Ok(resolved.slot(rank).map(|slot| published.ranks.size_of(slot)).unwrap_or_default())
        };
        self.with_ranks(size).unwrap_or_default()
    }

    /// The ranks are those of one moment; the sizes are from about that moment.
    fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
        let published = self.published.load();
        let ranks = &published.ranks;
        let sizes = || {
            let in_use = ranks.in_use().map(|(rank, slot)| (rank, ranks.size_of(slot)));
            // With room for all: growing would copy the sizes several times.
            let mut sizes = Vec::with_capacity(in_use.size_hint().1.unwrap_or(0));
            sizes.extend(in_use);
            Ok(sizes)
        };
        until_unchanged(&published, sizes).map(|(sizes, _)| sizes).unwrap_or_default()
    }

    fn remove_worker(&self, worker: WorkerId) {
        let ranks = self.ranks().into_iter().filter(|rank| rank.worker == worker);
        ranks.for_each(|rank| self.clear_rank(rank));
        self.writer.lock().forget_late_refusals(worker);
        // Some ranks of the worker may be partial although the index holds none of their blocks.
        if let Some(bound) = &self.bound {
            bound.counters.partial.remove_worker(worker);
        }
    }

    fn maintain(&self) -> bool {
        let mut writer = self.writer.lock();
        writer.do_maintenance(VISITED_WITH_MAINTENANCE)
            || self.compact_if_sparse(&mut writer, COPIED_WITH_MAINTENANCE, usize::MAX)
    }

    /// Returns the figure from before the change while one is under way: it never blocks on the writer.
    fn memory_bytes(&self) -> Option<usize> {
        if let Some(writer) = self.writer.try_lock() {
            self.bytes_taken.store(writer.memory().bytes_taken, Relaxed);
        }
        Some(self.bytes_taken.load(Relaxed))
    }

    fn twins_skipped(&self) -> u64 {
        self.twins_skipped.load(Relaxed)
    }

    fn abandon(&self) {
        self.published.load().ranks.abandon();
    }

    fn set_memory_max(&self, bytes_max: usize, spare_bytes: usize) {
        let Some(bound) = &self.bound else { return };
        let mut writer = self.writer.lock();
        bound.counters.bytes_max.store(bytes_max, Relaxed);
        if writer.fits(bytes_max) {
            writer.rebind(bytes_max);
            return;
        }
        writer.evict_until_copy_fits(spare_bytes.min(bytes_max));
        let (published, mut compacted) = writer.compacted();
        compacted.bind(writer.unbind(bytes_max));
        *writer = compacted;
        self.published.store(published);
    }

    fn memory_limit(&self) -> Option<MemoryLimit> {
        self.bound.as_ref().map(|bound| bound.counters.report())
    }
}
