//! Forgetting everything of a rank: at once for readers, little by little for the writer.
//!
//! A cleared rank loses its place in the table of ranks, and with it every reader loses sight of its
//! holders. What its holders still have in runs is released along the rank's own list of runs, a few
//! with each event that follows, so that nobody waits for a worker that goes.

use super::Writer;
use super::waiting::Waiting;
use crate::designs::run::published::holdings::Holder;
use crate::designs::run::published::layout::RunId;
use crate::designs::run::published::ranks::{HolderMeaning, RankSlot};

/// Runs that are released with each event. An event seldom adds more than one or two to a rank.
const RELEASED_WITH_EVENT: usize = 8;

impl Writer {
    /// Forgets all that the rank holds, and says how many blocks that was. The rank is not in use any
    /// more: it gets another slot when it comes back.
    pub(super) fn clear(&mut self, slot: RankSlot) -> u64 {
        self.ranks.retire(slot);
        let state = self.ranks.get_mut(slot);
        state.waiting = Waiting::default();
        self.rare_bytes -= std::mem::take(&mut state.extra_copies).bytes();
        let (blocks, levels) = (state.size.blocks, state.levels);
        self.placed -= std::mem::take(&mut state.placed);
        self.published.ranks.set_size(slot, &crate::RankSize::default());
        self.published.ranks.change(|table| {
            table.set_rank(slot, None);
            for (_, holder) in levels.iter() {
                table.set_holder(holder, HolderMeaning::NOBODY);
            }
        });
        self.leaving.push_back(slot);
        blocks as u64
    }

    /// Goes on with what cleared ranks have left behind.
    pub(super) fn release_left_behind(&mut self) {
        for _ in 0..RELEASED_WITH_EVENT {
            let Some(&slot) = self.leaving.front() else { return };
            match self.ranks.get_mut(slot).runs.pop() {
                Some(run) => self.release_all_of(slot, run),
                None => {
                    self.leaving.pop_front();
                    self.let_go(slot);
                }
            }
        }
    }

    /// Finishes it.
    pub(super) fn release_all_left_behind(&mut self) {
        while !self.leaving.is_empty() {
            self.release_left_behind();
        }
    }

    /// Ends and intervals only: the rank itself counts no more.
    pub(super) fn release_all_of(&mut self, slot: RankSlot, run: RunId) {
        let state = self.runs.get(run);
        let (len, is_single) = (state.len, state.columns.is_single());
        let end = self.coverage_end(run, slot);
        if end == 0 {
            return;
        }
        match self.exception(run, slot) {
            None => self.publish_plain(slot, run, 0),
            Some(_) => self.change_coverage(slot, run, |exceptions| exceptions.clear(slot)),
        }
        if end == len || !is_single {
            let domain = self.ranks.get(slot).domain;
            self.trim(run, domain);
        }
    }

    fn let_go(&mut self, slot: RankSlot) {
        let state = self.ranks.remove(slot);
        self.domains.leave(state.domain, slot);
        self.recount_directories();
        let holders = state.levels.iter().map(|(_, holder)| holder);
        self.holders.free.extend(holders.collect::<Vec<Holder>>());
    }
}
