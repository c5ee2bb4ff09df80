//! The writer: the only thread of control that changes an index. It owns the sequence hashes, the directories and the
//! runs that each rank holds, and publishes everything that queries read.
//!
//! | module | role |
//! |---|---|
//! | `store_blocks`, `remove_blocks`, `clear` | events: store, remove, clear |
//! | `tails` | chains that leave a run shortly before its end |
//! | `locate`, `redefine`, `twins` | positions of blocks, redefined sequence hashes, twins |
//! | `waiting`, `index_waiting` | waiting blocks, and their indexing once their parent is stored |
//! | `checkpoints` | the runs in which prefixes are found by their cursors |
//! | `hold`, `coverage`, `exceptions`, `reference_counts` | the holdings of each rank, and their published part |
//! | `domains`, `directory`, `segment`, `directory_line`, `sequence_columns` | lookup of sequence hashes by hash domain |
//! | `runs`, `rank_states`, `retention`, `trim`, `prune` | state of runs and ranks, and when blocks are freed |
//! | `held_parts` | reading the blocks of a rank in parts |
//! | `compaction`, `reclaim` | a compacted copy, and freeing of memory in pieces |
//! | `bounded`, `room`, `evict`, `run_values` | the memory limit |
//! | `branch_tiers`, `along` | fastest tiers of matches, and of blocks after others that are not held |
//! | `prefetch_pipeline`, `chunked`, `steps` | prefetching, a vector that never copies, step counts of tests |

mod along;
mod bounded;
mod branch_tiers;
mod checkpoints;
mod chunked;
mod clear;
mod compaction;
mod coverage;
mod directory;
mod directory_line;
mod domains;
mod evict;
mod exceptions;
mod held_parts;
mod hold;
mod index_waiting;
mod locate;
mod prefetch_pipeline;
mod prune;
mod rank_states;
mod reclaim;
mod redefine;
mod reference_counts;
mod remove_blocks;
mod retention;
mod room;
mod run_values;
mod runs;
mod segment;
mod sequence_columns;
mod steps;
mod store_blocks;
mod tails;
mod trim;
mod twins;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;

pub(super) use self::bounded::BoundState;
use self::checkpoints::RecentCheckpoints;
use self::clear::{BLOCKS_FOR_VISIT, VISITED_WITH_EVENT};
pub(super) use self::compaction::Compaction;
use self::directory::PrefetchBatches;
use self::domains::Domains;
use self::index_waiting::ReadyToIndex;
use self::prefetch_pipeline::PrefetchPipeline;
use self::prune::Pruning;
use self::rank_states::Ranks;
use self::reclaim::ReclaimQueue;
use self::retention::RetentionTable;
use self::runs::Runs;
use self::sequence_columns::SequenceColumns;
use self::steps::Steps;
use self::trim::TrimQueue;
use super::published::Published;
use super::published::atomics::Relaxed;
use super::published::edges::EdgesWriter;
use super::published::holdings::{Extents, Holder};
use super::published::layout::{HOLDERS_MAX, INFO, Info, RunId};
use super::published::rank_table::RankSlot;
use super::{RunLimits, RunMemory};
use crate::{AppliedChanges, BlockEvent, HeldBlock, PerTier, SequenceHash, WorkerRank, stored_events};

/// Writer state of one index.
#[derive(Debug)]
pub(super) struct Writer {
    published: Arc<Published>,
    limits: RunLimits,
    runs: Runs,
    edges: EdgesWriter,
    checkpoints: EdgesWriter,
    recent_checkpoints: RecentCheckpoints,
    extents: Extents,
    sequences: SequenceColumns,
    directory_batches: PrefetchBatches,
    prefetch_pipeline: PrefetchPipeline,
    domains: Domains,
    ranks: Ranks,
    holders: Holders,
    retention_table: RetentionTable,
    /// Cleared ranks whose holders still have entries in runs.
    retired: VecDeque<RankSlot>,
    /// Runs whose trimming was deferred.
    trim_queue: TrimQueue,
    /// Progress of moving blocks after gaps to the waiting blocks.
    pruning: Option<Box<Pruning>>,
    /// Unheld blocks above the limit that pruning tolerates before it starts again.
    unheld_tolerated: usize,
    /// Stored blocks for which others still wait.
    ready_to_index: ReadyToIndex,
    /// Memory to be freed.
    reclaim_queue: ReclaimQueue,
    /// Blocks that ranks hold at a position in a run, summed over the ranks.
    indexed: usize,
    /// Bytes of rare tables: of additional domains, exceptions and reference counts.
    rare_bytes: usize,
    /// The last version given to any run; no version is reused.
    version: u64,
    pub(super) steps: Steps,
    /// A compacted copy under construction.
    pub(super) compaction: Option<Box<Compaction>>,
    /// State of the memory limit, if there is one.
    bounded: Option<Box<BoundState>>,
}

/// Allocator of holders, with the rank of each.
#[derive(Debug, Default)]
struct Holders {
    owners: Vec<RankSlot>,
    free: Vec<Holder>,
}

impl Holders {
    fn take(&mut self, owner: RankSlot) -> Holder {
        if let Some(holder) = self.free.pop() {
            self.owners[holder.0 as usize] = owner;
            return holder;
        }
        self.owners.push(owner);
        Holder(self.end() - 1)
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty() || self.end() < HOLDERS_MAX
    }

    /// One more than the largest holder ever in use.
    fn end(&self) -> u32 {
        self.owners.len() as u32
    }

    fn owner(&self, holder: Holder) -> RankSlot {
        self.owners[holder.0 as usize]
    }
}

impl Writer {
    pub(super) fn new(published: Arc<Published>, limits: RunLimits) -> Self {
        let runs = Runs::new(&published.runs);
        let key = published.edges.key();
        Self {
            published,
            limits,
            runs,
            edges: EdgesWriter::default(),
            checkpoints: EdgesWriter::default(),
            recent_checkpoints: RecentCheckpoints::default(),
            extents: Extents::default(),
            sequences: SequenceColumns::new(key),
            directory_batches: PrefetchBatches::default(),
            prefetch_pipeline: PrefetchPipeline::default(),
            domains: Domains::new(key),
            ranks: Ranks::default(),
            holders: Holders::default(),
            retention_table: RetentionTable::default(),
            retired: VecDeque::new(),
            trim_queue: TrimQueue::default(),
            pruning: None,
            unheld_tolerated: 0,
            ready_to_index: ReadyToIndex::default(),
            reclaim_queue: ReclaimQueue::default(),
            indexed: 0,
            rare_bytes: 0,
            version: 0,
            steps: Steps::default(),
            compaction: None,
            bounded: None,
        }
    }

    pub(super) fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        if self.bounded.is_some() {
            return self.apply_within_bound(rank, event);
        }
        let slot = self.ranks.slot(rank);
        let applied = match (slot, event) {
            (_, BlockEvent::Stored { copies: 0, .. }) => return self.take_late_refusals(rank, event),
            (slot, BlockEvent::Stored { tier, parent, blocks, copies }) => {
                let Some(first) = blocks.first() else { return self.take_late_refusals(rank, event) };
                let slot = slot.or_else(|| self.join(rank, *tier, *parent, first));
                match slot.filter(|&slot| self.use_tier(slot, *tier)) {
                    Some(slot) => self.store_and_index_waiting(slot, *parent, blocks, (*tier, *copies)),
                    None => AppliedChanges { refused: blocks.len() as u64, ..AppliedChanges::default() },
                }
            }
            (None, BlockEvent::Copied { blocks, .. } | BlockEvent::Removed { blocks, .. }) => {
                AppliedChanges { unknown: blocks.len() as u64, ..AppliedChanges::default() }
            }
            (Some(slot), BlockEvent::Copied { tier, blocks }) => self.copy(slot, *tier, blocks),
            (Some(slot), BlockEvent::Removed { tier, blocks, copies }) => self.remove(slot, *tier, blocks, *copies),
            (None, BlockEvent::Cleared) => AppliedChanges::default(),
            (Some(slot), BlockEvent::Cleared) => {
                AppliedChanges { removed: self.clear(slot), ..AppliedChanges::default() }
            }
        };
        self.finish(rank);
        self.do_maintenance_of_event(self.ranks.slot(rank), event);
        // Maintenance may have dropped the rank's blocks.
        applied + self.take_late_refusals(rank, event)
    }

    /// Does the bounded part of the maintenance that each event carries.
    fn do_maintenance_of_event(&mut self, slot: Option<RankSlot>, event: &BlockEvent) {
        if let Some(slot) = slot {
            self.invalidate_pruning(slot);
        }
        let blocks = match event {
            BlockEvent::Stored { blocks, .. } => blocks.len(),
            BlockEvent::Copied { blocks, .. } | BlockEvent::Removed { blocks, .. } => blocks.len(),
            // Unregistering a worker must not be delayed by maintenance.
            BlockEvent::Cleared => return,
        };
        self.do_maintenance(VISITED_WITH_EVENT + blocks / BLOCKS_FOR_VISIT);
    }

    /// Publishes the size of a rank, and forgets a rank that holds nothing.
    fn finish(&mut self, rank: WorkerRank) {
        let Some(slot) = self.ranks.slot(rank) else { return };
        self.count_indexed(slot);
        let size = self.ranks.get(slot).size;
        if size.blocks > 0 {
            self.published.ranks.set_size(slot, &size);
        } else {
            self.clear(slot);
        }
    }

    /// Lists every block that the rank holds.
    pub(super) fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.ranks.slot(rank).map(|slot| self.held_by(slot)).unwrap_or_default()
    }

    /// Copies of a block that the rank holds, indexed or waiting.
    pub(super) fn copies_of(&self, rank: WorkerRank, block: SequenceHash) -> PerTier<u32> {
        let held = self.ranks.slot(rank).and_then(|slot| self.held_block(slot, block));
        held.map(|held| held.copies).unwrap_or_default()
    }

    /// Entries of the tables of edges and of checkpoints.
    #[cfg(all(test, not(loom)))]
    pub(super) fn entries_of_test(&self) -> [usize; 2] {
        [self.edges.count_of_test(), self.checkpoints.count_of_test()]
    }

    /// Memory use, including memory that cleared ranks have left. Costs the number of ranks and directory segments; frees
    /// nothing.
    pub(super) fn memory(&self) -> RunMemory {
        let parts = [self.runs.bytes(), self.sequences.bytes(), self.extents.bytes()];
        let tables = self.domains.bytes()
            + self.edges.bytes()
            + self.checkpoints.bytes()
            + self.ranks.bytes()
            + self.rare_bytes
            + self.retention_table.bytes();
        let tables = tables + self.reclaim_queue.bytes() + self.ranks.waiting_bytes();
        RunMemory {
            runs: self.runs.count(),
            domains: self.domains.count(),
            bytes_used: tables + parts.iter().map(|part| part.0).sum::<usize>(),
            bytes_taken: tables + parts.iter().map(|part| part.1).sum::<usize>(),
        }
    }

    /// Bytes of runs and sequence hashes in use, and bytes that were ever in use. Constant time.
    pub(super) fn block_bytes(&self) -> (usize, usize) {
        let (runs, sequences) = (self.runs.bytes(), self.sequences.bytes());
        (runs.0 + sequences.0, runs.1 + sequences.1)
    }

    /// Copies the content into new, minimal memory.
    pub(super) fn compacted(&self) -> (Arc<Published>, Self) {
        let published = Arc::new(Published::new(self.published.ranks.next_version(), self.published.edges.key()));
        let mut compacted = Self::new(Arc::clone(&published), RunLimits::UNLIMITED);
        for (slot, state) in self.ranks.iter() {
            for event in stored_events(self.held_by(slot)) {
                compacted.apply(state.rank, &event);
            }
        }
        compacted.limits = self.limits;
        (published, compacted)
    }

    /// Parent, length and flags of a run.
    fn info(&self, run: RunId) -> Info {
        Info(self.published.run(run).record[INFO].load(Relaxed))
    }

    /// Changes the info of a run atomically for readers.
    fn change_info(&mut self, run: RunId, change: impl FnOnce(Info) -> Info) {
        let info = change(self.info(run));
        self.change_run(run, |run| run.record[INFO].store(info.0, Relaxed));
    }

    /// Changes a run atomically for readers: a reader that has seen part of the change starts again.
    fn change_run(&mut self, run: RunId, change: impl FnOnce(super::published::Run<'_>)) {
        self.version += 2;
        let run = self.published.run(run);
        run.change(self.version, || change(run));
    }
}
