//! Forgetting everything of a rank: at once for readers, little by little for the writer.
//!
//! A cleared rank loses its place in the table of ranks, and with it every reader loses sight of its
//! holders. What its holders still have in runs is released along the rank's own list of runs, a few
//! with each event that follows, so that no event waits for a worker that leaves. An index that gets no events is asked to go on
//! ([`Writer::do_leftover`]).

use super::Writer;
use super::reclaim::Garbage;
use crate::designs::run::published::holdings::Holder;
use crate::designs::run::published::layout::RunId;
use crate::designs::run::published::rank_table::{HolderAssignment, RankSlot};

/// Runs that are visited with each event for what is left over. An event seldom adds more than one or two to a rank.
pub(super) const VISITED_WITH_EVENT: usize = 8;
/// One more is visited for this many blocks of the event, which may be new runs.
pub(super) const BLOCKS_FOR_VISIT: usize = 64;

impl Writer {
    /// Forgets all that the rank holds, and says how many blocks that was. The rank is not in use any
    /// more: it gets another slot when it comes back.
    pub(super) fn clear(&mut self, slot: RankSlot) -> u64 {
        self.ranks.retire(slot);
        let state = self.ranks.get_mut(slot);
        let (waiting, copies) = (std::mem::take(&mut state.waiting), std::mem::take(&mut state.reference_counts));
        let copies_bytes = copies.bytes();
        self.rare_bytes -= copies_bytes;
        let (blocks, levels) = (state.size.blocks, state.levels);
        self.indexed -= std::mem::take(&mut state.indexed);
        if !waiting.is_empty() {
            self.reclaim_queue.push(Garbage::Waiting(waiting.into_sets()), 0);
        }
        if !copies.is_empty() {
            self.reclaim_queue.push(Garbage::Copies(copies.into_runs()), copies_bytes);
        }
        self.published.ranks.set_size(slot, &crate::RankSize::default());
        self.published.ranks.change(|table| {
            table.set_rank(slot, None);
            for (_, holder) in levels.iter() {
                table.set_holder(holder, HolderAssignment::UNUSED);
            }
        });
        self.retired.push_back(slot);
        blocks as u64
    }

    /// Goes on with what is left over: chains whose trimming was put off, runs of ranks that were cleared, blocks behind
    /// holes when there are too many, memory. Takes about as many steps as it is asked to, each a run or as much as one, and says
    /// whether anything is left.
    pub(in crate::designs::run) fn do_maintenance(&mut self, visits: usize) -> bool {
        let mut left = visits;
        while left > 0 {
            let visited = self.do_maintenance_step();
            if visited == 0 {
                return false;
            }
            left = left.saturating_sub(visited);
        }
        self.has_maintenance()
    }

    /// Finishes it.
    pub(in crate::designs::run) fn finish_maintenance(&mut self) {
        while self.do_maintenance_step() > 0 {}
    }

    pub(in crate::designs::run) fn has_maintenance(&self) -> bool {
        !self.retired.is_empty() || !self.trim_queue.is_empty() || !self.reclaim_queue.is_empty() || self.is_pruning()
    }

    /// Does the next piece of it, and says how many runs that was.
    fn do_maintenance_step(&mut self) -> usize {
        if !self.trim_queue.is_empty() {
            return self.trim_next_queued();
        }
        if !self.retired.is_empty() {
            return self.release_retired();
        }
        if self.is_pruning() {
            return self.prune_step();
        }
        if !self.reclaim_queue.is_empty() {
            let steps = self.reclaim_queue.reclaim_piece().max(1);
            self.steps.take(steps);
            return steps;
        }
        self.prune_if_many_unheld();
        usize::from(self.is_pruning())
    }

    /// Goes on with what a cleared rank has left behind.
    fn release_retired(&mut self) -> usize {
        let Some(&slot) = self.retired.front() else { return 0 };
        match self.ranks.get_mut(slot).runs.pop() {
            Some(run) => 1 + self.release_run_of_retired(slot, run),
            None => {
                self.retired.pop_front();
                self.free_rank(slot);
                1
            }
        }
    }

    /// Finishes what cleared ranks have left behind, and trims all chains.
    pub(super) fn release_all_retired(&mut self) {
        while !self.trim_queue.is_empty() || !self.retired.is_empty() {
            self.do_maintenance_step();
        }
    }

    /// Ends and intervals only: the rank itself counts no more. Says how many runs were trimmed.
    pub(super) fn release_run_of_retired(&mut self, slot: RankSlot, run: RunId) -> usize {
        self.steps.take(1);
        let state = self.runs.get(run);
        let (len, is_single) = (state.len, state.columns.is_single());
        let end = self.coverage_end(run, slot);
        if end == 0 {
            return 0;
        }
        match self.exception(run, slot) {
            None => self.publish_plain(slot, run, (end, 0)),
            Some(_) => self.change_coverage(slot, run, |exceptions| exceptions.clear(slot)),
        }
        if end == len || !is_single {
            let domain = self.ranks.get(slot).domain;
            return self.trim(run, domain);
        }
        0
    }

    fn free_rank(&mut self, slot: RankSlot) {
        let state = self.ranks.remove(slot);
        self.leave_domain(state.domain, slot);
        let holders = state.levels.iter().map(|(_, holder)| holder);
        self.holders.free.extend(holders.collect::<Vec<Holder>>());
    }
}
