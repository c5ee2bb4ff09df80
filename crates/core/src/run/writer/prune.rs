//! Pruning: limits the blocks that the index keeps although no rank holds them.
//!
//! A removed block keeps its position and its sequence hashes while held blocks follow it. An engine that removes
//! everything but the ends of its chains would make the index keep every block that it ever stored. So when there are
//! more sequence hashes than held blocks, by more than the limit, pruning moves all blocks after gaps to the waiting
//! blocks, as if their parent had never been stored. Such blocks count in no answer, before or after. Pruning
//! proceeds run by run, a few with each event.

use rustc_hash::FxHashMap;

use super::Writer;
use crate::Tier;
use crate::run::published::layout::{RunId, RunPosition};
use crate::run::published::rank_table::RankSlot;

impl Writer {
    /// Updates the number of indexed blocks that the rank holds.
    pub(super) fn count_indexed(&mut self, slot: RankSlot) {
        let rank = self.ranks.get_mut(slot);
        let indexed = rank.size.blocks - rank.size.waiting;
        self.indexed = self.indexed - rank.indexed + indexed;
        rank.indexed = indexed;
    }

    /// Starts pruning when too many unheld blocks are kept, which needs at least as many removals as the limit.
    pub(super) fn prune_if_many_unheld(&mut self) {
        let (unheld, limit) = (self.unheld_blocks(), self.limits.removed_blocks_max);
        if unheld <= limit {
            self.unheld_tolerated = 0;
        } else if unheld > limit.saturating_add(self.unheld_tolerated) && !self.has_maintenance() {
            // Otherwise deferred maintenance may account for all of them.
            self.pruning = Some(Box::default());
        }
    }

    /// Upper bound on the sequence hashes whose block no rank of their domain holds.
    fn unheld_blocks(&self) -> usize {
        self.sequences.count().saturating_sub(self.indexed)
    }

    pub(super) fn is_pruning(&self) -> bool {
        self.pruning.is_some()
    }

    /// Discards what pruning has found for a rank to which an event was applied.
    pub(super) fn invalidate_pruning(&mut self, slot: RankSlot) {
        if let Some(pruning) = self.pruning.as_mut().filter(|pruning| pruning.slot == slot) {
            pruning.discard();
        }
    }

    /// Examines one run of a rank, or one of its ancestors. Returns the runs examined: always one.
    pub(super) fn prune_step(&mut self) -> usize {
        self.steps.take(1);
        let Some(mut pruning) = self.pruning.take() else { return 0 };
        if (pruning.slot.0 as usize) < self.ranks.slot_count() {
            if self.prune_rank(pruning.slot, &mut pruning) {
                pruning.next_rank();
            }
            self.pruning = Some(pruning);
        } else {
            // The current excess arose while other ranks were examined: pruning starts again only with more of it.
            let (unheld, limit) = (self.unheld_blocks(), self.limits.removed_blocks_max);
            self.unheld_tolerated = if unheld > limit { unheld - limit / 2 } else { 0 };
        }
        1
    }

    /// Examines one run and returns whether the rank has no other.
    fn prune_rank(&mut self, slot: RankSlot, pruning: &mut Pruning) -> bool {
        if !self.ranks.is_in_use(slot) {
            return true;
        }
        let Some(run) = pruning.path.last().copied().or_else(|| pruning.next_run(&self.ranks.get(slot).runs)) else {
            return true;
        };
        if pruning.path.is_empty() {
            pruning.path.push(run);
        }
        let end = self.coverage_end(run, slot);
        let parent = self.runs.get(run).parent();
        let prefix_length = match pruning.prefix_lengths.get(&parent.run) {
            // The rank holds none of it: runs below are after a gap, or are examined from there.
            _ if end == 0 => 0,
            _ if parent == RunPosition::ROOT => self.coverage(run, slot).prefix_length(Tier::External),
            Some(&prefix_length) if parent.offset < prefix_length => {
                self.coverage(run, slot).prefix_length(Tier::External)
            }
            Some(_) => 0,
            None => {
                pruning.path.push(parent.run);
                return false;
            }
        };
        pruning.path.pop();
        pruning.prefix_lengths.insert(run, prefix_length);
        if prefix_length < end {
            let mut followers = Vec::new();
            self.held_in(slot, run, prefix_length, &mut followers);
            self.release_from(slot, run, prefix_length);
            self.move_to_waiting(slot, followers);
            let rank = self.ranks.get(slot).rank;
            self.finish(rank);
        }
        false
    }
}

/// Progress of pruning: rank by rank, and of each rank run by run.
///
/// Events are applied between two steps. Events of other ranks do not change this rank's prefix lengths; after an
/// event of this rank its ancestors are examined again.
#[derive(Debug, Default)]
pub(super) struct Pruning {
    /// The rank being examined; those before it are finished.
    slot: RankSlot,
    /// Entries of the rank's list of runs that have been examined.
    visited: usize,
    /// The run being examined and those of its ancestors that must be examined first, lowest first.
    path: Vec<RunId>,
    /// Number of leading blocks of each run that are held without a gap in the run or above it.
    prefix_lengths: FxHashMap<RunId, u16>,
}

impl Pruning {
    fn next_run(&mut self, runs: &[RunId]) -> Option<RunId> {
        loop {
            let &run = runs.get(self.visited)?;
            self.visited += 1;
            if !self.prefix_lengths.contains_key(&run) {
                return Some(run);
            }
        }
    }

    fn next_rank(&mut self) {
        self.slot.0 += 1;
        self.visited = 0;
        self.discard();
    }

    /// Discards what was found for the rank.
    fn discard(&mut self) {
        self.path.clear();
        self.prefix_lengths.clear();
    }
}
