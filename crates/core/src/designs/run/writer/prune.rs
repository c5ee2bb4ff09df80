//! A bound for what nobody holds.
//!
//! A block that was removed keeps its place, and its names, for blocks that follow it and are held. An
//! engine that removes all but the ends of its chains would have the index keep everything that it
//! ever told. So when more names are kept than the ranks hold blocks, by more than the limit, all
//! that lies behind a hole is set aside: it waits for what is missing, as if its parent had never been
//! told. It counted in no answer before, and does not now. That goes run by run, a few with each event.

use rustc_hash::FxHashMap;

use super::Writer;
use crate::Tier;
use crate::designs::run::published::layout::{Position, RunId};
use crate::designs::run::published::rank_table::RankSlot;

impl Writer {
    /// Notes how many blocks with a place the rank holds.
    pub(super) fn count_indexed(&mut self, slot: RankSlot) {
        let rank = self.ranks.get_mut(slot);
        let indexed = rank.size.blocks - rank.size.waiting;
        self.indexed = self.indexed - rank.indexed + indexed;
        rank.indexed = indexed;
    }

    /// Starts to set aside what lies behind holes when too much is kept for it, which happens only after as many removals as
    /// the limit has blocks.
    pub(super) fn prune_if_many_unheld(&mut self) {
        let (unheld, limit) = (self.unheld_blocks(), self.limits.removed_blocks_max);
        if unheld <= limit {
            self.unheld_tolerated = 0;
        } else if unheld > limit.saturating_add(self.unheld_tolerated) && !self.has_maintenance() {
            // Otherwise what is left over may be all of it.
            self.pruning = Some(Box::default());
        }
    }

    /// Names that are kept although no rank of their domain holds the block, at most.
    fn unheld_blocks(&self) -> usize {
        self.sequences.count().saturating_sub(self.indexed)
    }

    pub(super) fn is_pruning(&self) -> bool {
        self.pruning.is_some()
    }

    /// An event of this rank is applied: what is known of its runs may not hold any more.
    pub(super) fn invalidate_pruning(&mut self, slot: RankSlot) {
        if let Some(pruning) = self.pruning.as_mut().filter(|pruning| pruning.slot == slot) {
            pruning.forget();
        }
    }

    /// Looks at one more run of a rank, or at one above it. Says how many runs that was: always one.
    pub(super) fn prune_step(&mut self) -> usize {
        self.steps.take(1);
        let Some(mut pruning) = self.pruning.take() else { return 0 };
        if (pruning.slot.0 as usize) < self.ranks.slot_count() {
            if self.prune_rank(pruning.slot, &mut pruning) {
                pruning.next_rank();
            }
            self.pruning = Some(pruning);
        } else {
            // What is too much now was added while other ranks were looked at: before the next time there must be more of it.
            let (unheld, limit) = (self.unheld_blocks(), self.limits.removed_blocks_max);
            self.unheld_tolerated = if unheld > limit { unheld - limit / 2 } else { 0 };
        }
        1
    }

    /// Looks at one more run, and says whether the rank has no other.
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
            // Nothing of it is held: what lies below is behind a hole, or it is looked at from there.
            _ if end == 0 => 0,
            _ if parent == Position::ROOT => self.coverage(run, slot).prefix_length(Tier::External),
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

/// How far setting aside has come: rank by rank, and of each run by run.
///
/// Between two runs events are applied. Those of other ranks do not change how far this one holds a chain; after one of
/// this rank everything above a run is looked at again.
#[derive(Debug, Default)]
pub(super) struct Pruning {
    /// The rank that is being looked at; those before it are finished.
    slot: RankSlot,
    /// Entries of the rank's list of runs that have been looked at.
    visited: usize,
    /// The run that is looked at and those above it that must be first, lowest first.
    path: Vec<RunId>,
    /// How far runs are held without a hole in them or before them.
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
        self.forget();
    }

    /// What is known of the rank's runs does not hold any more.
    fn forget(&mut self) {
        self.path.clear();
        self.prefix_lengths.clear();
    }
}
