//! A smaller copy of an index, made a part at a time beside it.
//!
//! Ranks are copied one after the other, and each of them run by run. Every event of a rank whose turn has come is applied to
//! the index and to the copy. An event changes each block by itself, whatever else its rank holds, so until a run is copied the
//! copy knows no more of its blocks than the index does, and from then on it knows the same. Copying a block twice changes
//! nothing. The copy takes the place of the index when all ranks are in it.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::Writer;
use super::rank_states::RankState;
use crate::designs::run::RunLimits;
use crate::designs::run::published::Published;
use crate::designs::run::published::layout::{Position, RunId};
use crate::designs::run::published::rank_table::RankSlot;
use crate::{BlockEvent, HeldBlock, RemovedCopies, SequenceHash, WorkerRank, stored_events};

/// By how much the versions of a copy's table of ranks are ahead, so that none of them is one of the index as well.
const VERSIONS_AHEAD: u64 = 1 << 32;

/// A copy that is being made.
#[derive(Debug)]
pub(in crate::designs::run) struct Compaction {
    published: Arc<Published>,
    copy: Writer,
    /// Ranks whose turn has not come, and the order of their turns.
    outside: FxHashSet<WorkerRank>,
    order: Vec<WorkerRank>,
    current: Option<CopiedRank>,
}

/// The rank that is being copied.
#[derive(Debug)]
struct CopiedRank {
    rank: WorkerRank,
    /// Entries of its list of runs that have been looked at.
    visited: usize,
    /// The run that is looked at and those above it that must be first, lowest first.
    path: Vec<RunId>,
    /// The run that was copied last.
    copied: RunId,
    /// Blocks that wait, or began to wait while the rank was copied.
    waiting: Vec<SequenceHash>,
}

impl Compaction {
    /// A copy of nothing yet.
    pub(in crate::designs::run) fn new(index: &Writer) -> Self {
        let version = index.published.ranks.next_version() + VERSIONS_AHEAD;
        let published = Arc::new(Published::new(version, index.published.edges.key()));
        let unlimited =
            RunLimits { waiting_blocks_max: usize::MAX, removed_blocks_max: usize::MAX, twins_max: usize::MAX };
        let copy = Writer::new(Arc::clone(&published), unlimited);
        let order: Vec<WorkerRank> = index.ranks.iter().map(|(_, state)| state.rank).collect();
        let outside = order.iter().copied().collect();
        Self { published, copy, outside, order, current: None }
    }

    /// An event was applied to the index.
    pub(in crate::designs::run) fn follow(&mut self, rank: WorkerRank, event: &BlockEvent) {
        if !self.outside.contains(&rank) {
            self.copy.apply(rank, event);
        }
    }

    /// Whether this rank is being copied.
    pub(super) fn is_copying(&self, rank: WorkerRank) -> bool {
        self.current.as_ref().is_some_and(|current| current.rank == rank)
    }

    /// Blocks of a rank have lost their places and wait: they are in no run that is still to be copied.
    pub(super) fn follow_waiting(&mut self, rank: WorkerRank, sequences: impl Iterator<Item = SequenceHash>) {
        if let Some(current) = self.current.as_mut().filter(|current| current.rank == rank) {
            current.waiting.extend(sequences);
        }
    }

    /// Takes about this many steps, each a block or a run, and starts with no rank that has more than `waiting_max` waiting
    /// blocks: these are listed at once. Says whether the copy is complete.
    pub(in crate::designs::run) fn advance(&mut self, index: &Writer, steps: usize, waiting_max: usize) -> bool {
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

    /// The turn of the next rank comes. Says how many steps that took.
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

    /// Copies a run of a rank, or goes to the one above it, or copies a waiting block. Says how many steps that took.
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

    /// The run, unless the run above it has the turn before: blocks that follow none of their rank wait in the copy, and are
    /// placed at once when their parent comes.
    fn parent_first(&self, index: &Writer, (slot, run): (RankSlot, RunId), current: &mut CopiedRank) -> Option<RunId> {
        let parent = index.runs.get(run).parent();
        let end = if parent == Position::ROOT { 0 } else { index.coverage_end(parent.run, slot) };
        if end > 0 && parent.run != current.copied && index.coverage_end(run, slot) > 0 {
            let above = index.sequence_of(index.ranks.get(slot).domain, Position { run: parent.run, offset: end - 1 });
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

    /// From now on the copy has just as many copies of these blocks as the index. Events may have brought some of them.
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
            // A level that is added later costs a look at every run.
            let slot = self.copy.ranks.slot(rank).or_else(|| self.copy.join(rank, state.home, *parent, &blocks[0]));
            for (slot, tier) in slot.into_iter().flat_map(|slot| state.levels.iter().map(move |(tier, _)| (slot, tier)))
            {
                // There are no more holders than in the index.
                let _ = self.copy.use_tier(slot, tier);
            }
        }
        for event in events {
            self.copy.apply(rank, &event);
        }
    }

    /// The complete copy, in place of the index.
    pub(in crate::designs::run) fn finish(self, index: &Writer) -> (Arc<Published>, Writer) {
        (self.published, Writer { limits: index.limits, steps: index.steps.clone(), ..self.copy })
    }

    /// What there is of the copy, when it is given up.
    pub(super) fn into_copy(self) -> Writer {
        self.copy
    }
}

impl CopiedRank {
    /// The run that is looked at, or the next one of the rank's list.
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
