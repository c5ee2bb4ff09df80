//! The run index: the default index design.
//!
//! `docs/run-index.md` describes it. Consecutive blocks are together in **runs**, which stay where they are.
//! One table of **edges** maps a block and a local hash to the run that follows. Each run has **holdings**: the
//! number of leading blocks of the run that each holder has. Only the writer keeps the engines' sequence hashes, and
//! one directory of them for each hash domain. Readers compare local hashes along runs, merge the holdings and check
//! versions at the end.
//!
//! | module | role |
//! |---|---|
//! | `published` | data that queries read: runs, edges, holdings and the rank table |
//! | `find`, `comparison`, `branching`, `top` | queries: the walk, the blocks of one run, twins, the deepest ranks |
//! | `prefix` | prefixes by their cursors |
//! | `matches`, `scratch`, `answers` | depths by holder, the buffers of a query, conversion to ranks |
//! | `writer` | state that events change: directories, columns, coverage, eviction, compaction |
//! | `shared` | the index as a `SharedIndex` |
//! | `limits` | limits of an index without a memory limit |
//! | `effort`, `widest` | step counts of tests; code for the processor's widest vectors |
//! | `bound`, `use_samples` | counters and use samples of an index with a memory limit |
//! | `models_tests`, `costs_tests`, `compaction_tests`, `held_parts_tests`, `tails_tests` | loom models, step limits, compaction, reading in parts and tails against the oracle |

mod answers;
mod bound;
mod branching;
#[cfg(all(test, not(loom)))]
mod compaction_tests;
mod comparison;
#[cfg(all(test, not(loom)))]
mod costs_tests;
mod effort;
mod find;
#[cfg(all(test, not(loom)))]
mod held_parts_tests;
mod limits;
mod matches;
#[cfg(all(test, loom))]
mod models_tests;
mod prefix;
mod published;
mod scratch;
mod shared;
#[cfg(all(test, not(loom)))]
mod tails_tests;
mod top;
mod use_samples;
mod widest;
mod writer;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use self::answers::{ResolvedOrder, ResolvedRanks};
pub use self::answers::{RunHolder, RunHolders, RunMatches};
use self::bound::BoundCounters;
pub use self::bound::{INDEX_BYTES_MIN, MemoryTooSmall, OnEvicted};
use self::comparison::Conflict;
use self::find::{find_depths, until_unchanged};
pub use self::limits::RunLimits;
use self::published::Published;
use self::published::holdings::Holder;
use self::scratch::Scratch;
use self::top::find_top;
use self::use_samples::UseSamples;
use self::writer::{BoundState, Compaction, Writer};
use crate::keyed::HashKey;
use crate::{LocalHash, RankOrder, Tier};

/// Memory use of a [`RunIndex`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunMemory {
    /// Runs of blocks.
    pub runs: usize,
    /// Hash domains: groups of ranks whose engines give the same prefix the same sequence hash.
    pub domains: usize,
    /// Bytes in use.
    pub bytes_used: usize,
    /// Bytes in use or kept for reuse.
    pub bytes_taken: usize,
}

/// Smallest memory that compaction considers.
const COMPACTED_BYTES_MIN: usize = if SMALL { 1 << 10 } else { 16 << 20 };
/// Compaction starts when less than this share (numerator, denominator) of the memory is in use.
const COMPACTED_SHARE: (usize, usize) = if SMALL { (7, 8) } else { (1, 4) };
/// Tests compact small indexes, in small parts.
const SMALL: bool = cfg!(all(test, debug_assertions));
/// Blocks and runs that compaction processes with a removal event and with a maintenance call.
const COPIED_WITH_EVENT: usize = if SMALL { 2 } else { 64 };
const COPIED_WITH_MAINTENANCE: usize = if SMALL { 8 } else { 1_024 };
/// Waiting blocks of a rank whose copy an event may start; compaction lists them at once. A rank with more of them is
/// copied by a maintenance call.
const WAITING_LISTED_WITH_EVENT_MAX: usize = 1 << 9;

/// Runs of blocks with the holders of each: the default design.
///
/// Exact under any order of events. Storing or removing a block takes some tens of nanoseconds; all ranks whose
/// engines use the same sequence hashes share the block. A query costs the blocks that it compares and the holders of
/// the runs on its path, regardless of the size of the index. Clearing a rank costs a few stores, and then eight of its
/// runs with each event that follows. Memory: `docs/run-index.md`.
///
/// # Consistency
///
/// Writers are serialised by a mutex, which a single writer finds free. Readers take no lock, never block, and write
/// nothing that other threads read. The blocks of one event become visible one after the other, in the order of the
/// event; so do blocks that waited for one of them. A cleared rank disappears all at once. When no event is being
/// applied, answers are exact; a rank with waiting blocks may have blocks that its answers lack until `maintain` has
/// nothing left to do. While events are being applied, each rank's depth is one that was true at some moment of the
/// call. There are two exceptions. While a rank redefines a sequence hash, its answer may lack the blocks that
/// follow that hash. While blocks of a rank with two sequence hashes for one prefix change, its answer may lack one
/// of the two chains.
#[derive(Debug)]
pub struct RunIndex {
    published: ArcSwap<Published>,
    /// Ranks and holders, resolved by the first query after they changed.
    resolved: ArcSwap<ResolvedRanks>,
    /// The order of the holders' ranks, resolved by the first query after the ranks or the order changed.
    ordered: ArcSwap<ResolvedOrder>,
    writer: Mutex<Writer>,
    /// Bytes that the index took when [`SharedIndex::memory_bytes`](crate::SharedIndex::memory_bytes) last found the writer free.
    bytes_taken: AtomicUsize,
    /// Present only in an index with a memory limit.
    bound: Option<Bound>,
    twins_skipped: AtomicU64,
}

#[derive(Debug)]
struct Bound {
    counters: Arc<BoundCounters>,
    use_samples: Arc<UseSamples>,
}

impl Default for RunIndex {
    fn default() -> Self {
        Self::new(RunLimits::default())
    }
}

impl RunIndex {
    /// Creates an empty index with the given limits and the process's key in its hash tables.
    #[must_use]
    pub fn new(limits: RunLimits) -> Self {
        Self::keyed(limits, HashKey::of_process())
    }

    /// Creates an empty index with the given limits and its own key in its hash tables.
    #[must_use]
    pub fn keyed(limits: RunLimits, key: HashKey) -> Self {
        let published = Arc::new(Published::new(0, key));
        let writer = Mutex::new(Writer::new(Arc::clone(&published), limits));
        Self {
            published: ArcSwap::new(published),
            resolved: ArcSwap::default(),
            ordered: ArcSwap::default(),
            writer,
            bytes_taken: AtomicUsize::new(0),
            bound: None,
            twins_skipped: AtomicU64::new(0),
        }
    }

    /// Creates an empty index that takes at most `bytes_max` bytes at any time and evicts its least valuable blocks
    /// for new ones (`docs/bounded-memory.md`).
    ///
    /// An evicted block counts as removed by its rank: the answers equal those of an index that received the removal.
    ///
    /// # Errors
    ///
    /// [`MemoryTooSmall`] if `bytes_max` is less than [`INDEX_BYTES_MIN`].
    pub fn bounded(limits: RunLimits, bytes_max: usize) -> Result<Self, MemoryTooSmall> {
        if bytes_max < INDEX_BYTES_MIN {
            return Err(MemoryTooSmall(bytes_max));
        }
        let mut index = Self::new(limits);
        let bound = Bound { counters: Arc::default(), use_samples: Arc::new(UseSamples::new()) };
        bound.counters.bytes_max.store(bytes_max, Relaxed);
        let bounded = BoundState::new(bytes_max, Arc::clone(&bound.counters), Arc::clone(&bound.use_samples));
        index.writer.get_mut().bind(bounded);
        index.bound = Some(bound);
        Ok(index)
    }

    /// Registers a callback, run on the writer thread, for evicted and refused blocks. An index without a limit never
    /// calls it.
    pub fn on_evicted(&self, on_evicted: OnEvicted) {
        self.writer.lock().on_evicted(on_evicted);
    }

    /// Records the use of the deepest run for the eviction policy, and the twins that the query skipped.
    #[inline]
    fn record_use(&self, scratch: &Scratch) {
        if scratch.branches.twins_skipped() > 0 {
            self.twins_skipped.fetch_add(scratch.branches.twins_skipped() as u64, Relaxed);
        }
        if let Some(bound) = &self.bound
            && let Some(step) = scratch.path.last()
        {
            bound.use_samples.record(step.run);
        }
    }

    /// Repeats `attempt` with the ranks resolved until neither the ranks nor what `attempt` reads has changed during it.
    /// Returns none if the index is abandoned. Resolves the ranks again after they changed, which costs their number.
    fn with_ranks<T>(&self, mut attempt: impl FnMut(&Published, &ResolvedRanks) -> Result<T, Conflict>) -> Option<T> {
        loop {
            let (published, resolved) = (self.published.load(), self.resolved.load());
            let (found, version) = until_unchanged(&published, || attempt(&published, &resolved))?;
            if resolved.version == version {
                return Some(found);
            }
            let (mut resolved, version) = until_unchanged(&published, || Ok(ResolvedRanks::read(&published)))?;
            resolved.version = version;
            self.resolved.store(Arc::new(resolved));
        }
    }

    /// The precedence of each holder's rank. Costs their number after the ranks or the order changed.
    fn resolved_order(&self, resolved: &ResolvedRanks, order: &Arc<RankOrder>) -> Arc<ResolvedOrder> {
        let known = self.ordered.load();
        if known.is_of(resolved, order) {
            return Arc::clone(&known);
        }
        let ordered = Arc::new(ResolvedOrder::new(resolved, order));
        self.ordered.store(Arc::clone(&ordered));
        ordered
    }

    /// Finds, for the local hashes of a prompt's blocks, how many leading blocks each holder has. The fastest form of
    /// a query; see [`RunMatches`].
    pub fn find_depths(&self, query: &[LocalHash], matches: &mut RunMatches) {
        let published = self.published.load();
        let found = until_unchanged(&published, || find_depths(&published, query, &mut matches.scratch));
        matches.record_result(found);
        self.record_use(&matches.scratch);
    }

    /// Finds the `count` ranks with the longest prefixes in `level` and faster tiers, deepest first. Costs the path
    /// of the query and some of the holders of its last runs. Above 64 ranks it costs as much as the complete answer.
    pub fn find_top(&self, query: &[LocalHash], count: usize, level: Tier, matches: &mut RunMatches) {
        let published = self.published.load();
        let scratch = &mut matches.scratch;
        let found = until_unchanged(&published, || find_top(&published, query, (count, level), scratch));
        matches.record_result(found);
        self.record_use(&matches.scratch);
    }

    /// The rank and tiers of each holder. Costs the number of holders.
    #[must_use]
    pub fn holders(&self) -> RunHolders {
        let published = self.published.load();
        let found = until_unchanged(&published, || {
            let holders = (0..published.ranks.holder_count()).map(|holder| {
                let assignment = published.ranks.assignment(Holder(holder as u32));
                let level = |level: u8| Tier::ALL.get(usize::from(level)).copied();
                let levels = level(assignment.first).zip(level(assignment.last)).filter(|_| assignment.is_in_use());
                let rank = || published.ranks.rank(assignment.rank);
                levels.map(|(fastest, slowest)| RunHolder { rank: rank(), fastest, slowest })
            });
            Ok(holders.collect())
        });
        let (holders, version) = found.unwrap_or_default();
        RunHolders { version, holders }
    }

    /// Memory use after all maintenance ([`SharedIndex::maintain`](crate::SharedIndex::maintain)). Completes the
    /// maintenance, and holds the writer's mutex meanwhile.
    #[must_use]
    pub fn memory(&self) -> RunMemory {
        let mut writer = self.writer.lock();
        writer.finish_maintenance();
        while self.compact_if_sparse(&mut writer, usize::MAX, usize::MAX) {
            writer.finish_maintenance();
        }
        writer.memory()
    }

    /// Continues compaction, and starts it when most of the content is gone. Readers may still read any record, so the
    /// index never frees records one by one; compaction copies the remaining content and frees all of the old memory.
    ///
    /// Processes about `steps` blocks or runs, and starts with no rank that has more than `waiting_max` waiting
    /// blocks. Returns whether more work is left.
    fn compact_if_sparse(&self, writer: &mut Writer, steps: usize, waiting_max: usize) -> bool {
        if self.bound.is_some() {
            // Two copies would exceed the limit.
            return false;
        }
        if writer.compaction.is_none() {
            let (used, taken) = writer.block_bytes();
            if taken <= COMPACTED_BYTES_MIN
                || used >= taken / COMPACTED_SHARE.1 * COMPACTED_SHARE.0
                || writer.has_maintenance()
            {
                return false;
            }
        }
        self.compact(writer, steps, waiting_max)
    }

    /// Starts a compaction, or continues it. Separate from the check, which every event makes, because its stack frame takes
    /// several pages.
    #[cold]
    #[inline(never)]
    fn compact(&self, writer: &mut Writer, steps: usize, waiting_max: usize) -> bool {
        let mut compaction = writer.compaction.take().unwrap_or_else(|| Box::new(Compaction::new(writer)));
        if !compaction.advance(writer, steps, waiting_max) {
            writer.compaction = Some(compaction);
            return true;
        }
        let (published, compacted) = compaction.finish(writer);
        let index = std::mem::replace(writer, compacted);
        self.published.store(published);
        writer.reclaim_index(index);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::{Block, BlockEvent, DpRank, SequenceHash, SharedIndex, WorkerId, WorkerRank};

    fn stored(rank: u64) -> (WorkerRank, BlockEvent) {
        let blocks = vec![Block { sequence: SequenceHash(rank), local: LocalHash(7) }];
        let rank = WorkerRank { worker: WorkerId(rank), dp_rank: DpRank(0) };
        (rank, BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 })
    }

    #[test]
    fn queries_of_an_abandoned_index_return_after_a_writer_panicked() {
        let index = RunIndex::default();
        let (rank, event) = stored(1);
        index.apply(rank, &event);
        let published = index.published.load_full();
        let change = || published.ranks.change(|_| panic!("panic of the test"));
        assert!(catch_unwind(AssertUnwindSafe(change)).is_err());
        assert_eq!(published.ranks.version(), None, "the change never ends");
        index.abandon();
        assert!(index.find(&[LocalHash(7)]).ranks.is_empty());
        assert!(index.sizes().is_empty() && index.holders().holders.is_empty());
        let mut matches = RunMatches::default();
        index.find_depths(&[LocalHash(7)], &mut matches);
        assert!(matches.depths().is_empty());
        index.find_top(&[LocalHash(7)], 1, Tier::External, &mut matches);
        assert_eq!(matches.top().len(), 0);
    }

    #[test]
    fn memory_bytes_returns_the_last_figure_while_the_writer_is_locked() {
        let index = RunIndex::default();
        for (rank, event) in (1..100).map(stored) {
            index.apply(rank, &event);
        }
        let before = index.memory_bytes();
        assert!(before > Some(0));
        let writing = index.writer.lock();
        assert_eq!(index.memory_bytes(), before);
        drop(writing);
    }
}
