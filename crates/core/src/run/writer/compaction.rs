//! Incremental compaction: a smaller copy of an index, built while the index is in use.
//!
//! The writer copies rank after rank, and of each rank run after run. An event of a rank whose copying has started is
//! applied to the index and to the copy. An event changes each block independently of the rank's other blocks. So
//! until a run is copied, the copy has no block of it that the index lacks, and from then on it has the same blocks.
//! Copying a block twice changes nothing. The copy replaces the index once it has all ranks.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::Writer;
use super::rank_states::RankState;
use crate::run::RunLimits;
use crate::run::published::Published;
use crate::run::published::layout::{RunId, RunPosition};
use crate::run::published::rank_table::RankSlot;
use crate::{BlockEvent, HeldBlock, RemovedCopies, SequenceHash, WorkerRank, stored_events};

/// Offset of the versions of the copy's rank table, so that none of them equals one of the index's.
const VERSIONS_AHEAD: u64 = 1 << 32;

/// A compacted copy under construction.
#[derive(Debug)]
pub(in crate::run) struct Compaction {
    published: Arc<Published>,
    pub(super) copy: Writer,
    /// Ranks whose copying has not started, and their order.
    outside: FxHashSet<WorkerRank>,
    order: Vec<WorkerRank>,
    current: Option<CopiedRank>,
}

/// The rank that is being copied.
#[derive(Debug)]
struct CopiedRank {
    rank: WorkerRank,
    /// Entries of its list of runs that have been visited.
    visited: usize,
    /// The run to copy and those of its ancestors that must be copied first, lowest first.
    path: Vec<RunId>,
    /// The run that was copied last.
    copied: RunId,
    /// Blocks that wait, or began to wait while the rank was being copied.
    waiting: Vec<SequenceHash>,
}

impl Compaction {
    /// Creates an empty copy.
    pub(in crate::run) fn new(index: &Writer) -> Self {
        let version = index.published.ranks.next_version() + VERSIONS_AHEAD;
        let published = Arc::new(Published::new(version, index.published.edges.key()));
        let copy = Writer::new(Arc::clone(&published), RunLimits::UNLIMITED);
        let order: Vec<WorkerRank> = index.ranks.iter().map(|(_, state)| state.rank).collect();
        let outside = order.iter().copied().collect();
        Self { published, copy, outside, order, current: None }
    }

    /// Applies an event, which the index has applied, to the copy.
    pub(in crate::run) fn follow(&mut self, rank: WorkerRank, event: &BlockEvent) {
        if !self.outside.contains(&rank) {
            self.copy.apply(rank, event);
        }
    }

    /// Whether this rank is being copied.
    pub(super) fn is_copying(&self, rank: WorkerRank) -> bool {
        self.current.as_ref().is_some_and(|current| current.rank == rank)
    }

    /// Records blocks of a rank that moved to the waiting blocks: no run that is still to be copied contains them.
    pub(super) fn follow_waiting(&mut self, rank: WorkerRank, sequences: impl Iterator<Item = SequenceHash>) {
        if let Some(current) = self.current.as_mut().filter(|current| current.rank == rank) {
            current.waiting.extend(sequences);
        }
    }

    /// Continues the copy by about `steps` steps, each a block or a run. Starts with no rank that has more than
    /// `waiting_max` waiting blocks, because those are listed at once. Returns whether the copy is complete.
    pub(in crate::run) fn advance(&mut self, index: &Writer, steps: usize, waiting_max: usize) -> bool {
        let mut left = steps;
        while left > 0 {
            let taken = match self.current.take() {
                Some(current) => self.copy_step(index, current),
                None => match self.order.last() {
                    None => return true,
                    Some(&rank) if waiting_blocks(index, rank) > waiting_max => return false,
                    Some(_) => self.start_next(index),
                },
            };
            index.steps.take(taken);
            left = left.saturating_sub(taken);
        }
        false
    }

    /// Starts with the next rank and returns the steps.
    fn start_next(&mut self, index: &Writer) -> usize {
        let Some(rank) = self.order.pop() else { return 1 };
        self.outside.remove(&rank);
        let slot = index.ranks.slot(rank);
        let waiting = slot.map(|slot| index.ranks.get(slot).waiting.iter().map(|block| block.sequence).collect());
        let waiting: Vec<SequenceHash> = waiting.unwrap_or_default();
        let steps = 1 + waiting.len();
        self.current = Some(CopiedRank { rank, visited: 0, path: Vec::new(), copied: RunId::NONE, waiting });
        steps
    }

    /// Copies one run of a rank, moves to its parent run, or copies a waiting block. Returns the steps.
    fn copy_step(&mut self, index: &Writer, mut current: CopiedRank) -> usize {
        // A rank that was cleared is cleared in the copy as well.
        let Some(slot) = index.ranks.slot(current.rank) else { return 1 };
        let mut held = Vec::new();
        if let Some(run) = current.next_run(&index.ranks.get(slot).runs) {
            let Some(run) = self.parent_first(index, (slot, run), &mut current) else {
                self.current = Some(current);
                return 1;
            };
            if index.coverage_end(run, slot) > 0 {
                index.held_in(slot, run, 0, &mut held);
            }
        } else if let Some(sequence) = current.waiting.pop() {
            held.extend(index.held_block(slot, sequence));
        } else {
            return 1;
        }
        let steps = 1 + held.len();
        self.copy_blocks(index.ranks.get(slot), held);
        self.current = Some(current);
        steps
    }

    /// Returns the run unless its parent run has to be copied first: blocks without a parent would wait in the copy,
    /// and would all be indexed at once when the parent is copied.
    fn parent_first(&self, index: &Writer, (slot, run): (RankSlot, RunId), current: &mut CopiedRank) -> Option<RunId> {
        let parent = index.runs.get(run).parent();
        let end = if parent == RunPosition::ROOT { 0 } else { index.coverage_end(parent.run, slot) };
        if end > 0 && parent.run != current.copied && index.coverage_end(run, slot) > 0 {
            let above =
                index.sequence_of(index.ranks.get(slot).domain, RunPosition { run: parent.run, offset: end - 1 });
            if self.copied_block(current.rank, above).is_none() {
                current.path.push(parent.run);
                return None;
            }
        }
        current.path.pop();
        current.copied = run;
        Some(run)
    }

    fn copied_block(&self, rank: WorkerRank, sequence: SequenceHash) -> Option<HeldBlock> {
        self.copy.held_block(self.copy.ranks.slot(rank)?, sequence)
    }

    /// Gives these blocks the same reference counts in the copy as in the index. Events may have stored some of them
    /// already.
    fn copy_blocks(&mut self, state: &RankState, mut blocks: Vec<HeldBlock>) {
        let rank = state.rank;
        blocks.retain(|block| {
            let Some(copied) = self.copied_block(rank, block.sequence) else { return true };
            if copied == *block {
                return false;
            }
            for (tier, _) in copied.copies.iter().filter(|&(_, &copies)| copies > 0) {
                let blocks = vec![block.sequence];
                self.copy.apply(rank, &BlockEvent::Removed { tier, blocks, copies: RemovedCopies::All });
            }
            true
        });
        let events = stored_events(blocks);
        if let Some(BlockEvent::Stored { parent, blocks, .. }) = events.first() {
            // Adding a level later would visit every run.
            let slot = self.copy.ranks.slot(rank).or_else(|| self.copy.join(rank, state.home, *parent, &blocks[0]));
            for (slot, tier) in slot.into_iter().flat_map(|slot| state.levels.iter().map(move |(tier, _)| (slot, tier)))
            {
                // The copy never has more holders than the index.
                let _ = self.copy.use_tier(slot, tier);
            }
        }
        for event in events {
            self.copy.apply(rank, &event);
        }
    }

    /// Returns the complete copy, to replace the index.
    pub(in crate::run) fn finish(self, index: &Writer) -> (Arc<Published>, Writer) {
        (self.published, Writer { limits: index.limits, steps: index.steps.clone(), ..self.copy })
    }
}

impl CopiedRank {
    /// The run to copy, or the next one of the rank's list.
    fn next_run(&mut self, runs: &[RunId]) -> Option<RunId> {
        if self.path.is_empty() {
            let &run = runs.get(self.visited)?;
            self.visited += 1;
            self.path.push(run);
        }
        self.path.last().copied()
    }
}

fn waiting_blocks(index: &Writer, rank: WorkerRank) -> usize {
    index.ranks.slot(rank).map_or(0, |slot| index.ranks.get(slot).waiting.len())
}
