//! Clearing a rank: at once for readers, incrementally for the writer.
//!
//! A cleared rank leaves the rank table, and with it every reader stops seeing its holders. The writer then releases
//! the entries of its holders along the rank's list of runs, a few with each event that follows, so that no event is
//! delayed when a worker leaves. Maintenance calls do the same for an index that receives no events
//! ([`Writer::do_maintenance`]).

use super::Writer;
use super::reclaim::Garbage;
use super::waiting::WaitingBlocks;
use crate::run::published::holdings::Holder;
use crate::run::published::layout::RunId;
use crate::run::published::rank_table::{HolderAssignment, RankSlot};

/// Runs that the maintenance of each event visits. An event seldom adds more than one or two runs to a rank.
pub(super) const VISITED_WITH_EVENT: usize = 8;
/// One more run is visited for this many blocks of the event, which may be new runs.
pub(super) const BLOCKS_FOR_VISIT: usize = 64;

impl Writer {
    /// Clears a rank and returns the number of blocks that it held. The slot is retired: the rank gets another one
    /// when it returns.
    pub(super) fn clear(&mut self, slot: RankSlot) -> u64 {
        self.ranks.retire(slot);
        let state = self.ranks.get_mut(slot);
        state.waiting = WaitingBlocks::default();
        state.ready = Vec::new();
        let copies = std::mem::take(&mut state.reference_counts);
        let copies_bytes = copies.bytes();
        self.rare_bytes -= copies_bytes;
        let (blocks, levels) = (state.size.blocks, state.levels);
        self.indexed -= std::mem::take(&mut state.indexed);
        if !copies.is_empty() {
            self.reclaim_queue.push(Garbage::ReferenceCounts(copies.into_runs()), copies_bytes);
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

    /// Does deferred work: trimming of long chains, runs of cleared ranks, waiting blocks whose parent is stored, blocks after gaps beyond
    /// the limit, memory to free. Takes about `visits` steps, each a run or the equivalent. Returns whether more work is left.
    pub(in crate::run) fn do_maintenance(&mut self, visits: usize) -> bool {
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

    /// Does all deferred work.
    pub(in crate::run) fn finish_maintenance(&mut self) {
        while self.do_maintenance_step() > 0 {}
    }

    pub(in crate::run) fn has_maintenance(&self) -> bool {
        !self.retired.is_empty()
            || !self.trim_queue.is_empty()
            || !self.ready_to_index.is_empty()
            || !self.reclaim_queue.is_empty()
            || self.is_pruning()
    }

    /// Does one piece of deferred work and returns its steps.
    fn do_maintenance_step(&mut self) -> usize {
        if !self.trim_queue.is_empty() {
            return self.trim_next_queued();
        }
        if !self.retired.is_empty() {
            return self.release_retired();
        }
        if !self.ready_to_index.is_empty() {
            return self.index_waiting_step();
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

    /// Releases one run of a cleared rank.
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

    /// Releases all runs of cleared ranks and trims all chains.
    pub(super) fn release_all_retired(&mut self) {
        while !self.trim_queue.is_empty() || !self.retired.is_empty() {
            self.do_maintenance_step();
        }
    }

    /// Releases a run of a cleared rank: only ends and intervals, because the rank's counters no longer matter.
    /// Returns the number of trimmed runs.
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
