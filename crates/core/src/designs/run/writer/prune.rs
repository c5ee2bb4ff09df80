//! A bound for what nobody holds.
//!
//! A block that was removed keeps its place, and its names, for blocks that follow it and are held. An
//! engine that removes all but the ends of its chains would have the index keep everything that it
//! ever told. So when more names are kept than the ranks hold blocks, by more than the limit, all
//! that lies behind a hole is set aside: it waits for what is missing, as if its parent had never been
//! told. It counted in no answer before, and does not now.

use rustc_hash::FxHashMap;

use super::Writer;
use crate::Tier;
use crate::designs::run::published::layout::{Place, RunId};
use crate::designs::run::published::ranks::RankSlot;

impl Writer {
    /// Notes how many blocks with a place the rank holds.
    pub(super) fn count_placed(&mut self, slot: RankSlot) {
        let rank = self.ranks.get_mut(slot);
        let placed = rank.size.blocks - rank.size.waiting;
        self.placed = self.placed - rank.placed + placed;
        rank.placed = placed;
    }

    /// Sets aside what lies behind holes when too much is kept for it. Costs everything that is held by
    /// runs, but only after as many removals as the limit has blocks.
    pub(super) fn prune_if_bare(&mut self) {
        let too_many =
            |writer: &Self| writer.names.count() > writer.placed.saturating_add(writer.limits.removed_blocks_max);
        if !too_many(self) {
            return;
        }
        // Cleared ranks may be all of it.
        self.release_all_left_behind();
        if !too_many(self) {
            return;
        }
        let slots: Vec<RankSlot> = self.ranks.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.set_aside_behind_holes(slot);
            self.count_placed(slot);
            self.published.ranks.set_size(slot, &self.ranks.get(slot).size);
        }
        // Now every name belongs to a block that some rank of its domain holds.
        debug_assert!(self.names.count() <= self.placed);
    }

    fn set_aside_behind_holes(&mut self, slot: RankSlot) {
        let mut runs = self.runs_of(slot);
        runs.sort_by_cached_key(|&run| self.runs_above(run));
        // How far each run is held without a hole in it or before it.
        let mut reached: FxHashMap<RunId, u16> = FxHashMap::default();
        let mut behind = Vec::new();
        let mut followers = Vec::new();
        for &run in &runs {
            let parent = self.runs.get(run).parent;
            let follows = parent == Place::ROOT || reached.get(&parent.run).is_some_and(|&reach| parent.offset < reach);
            let coverage = self.coverage(run, slot);
            let reach = if follows { coverage.reach(Tier::External) } else { 0 };
            reached.insert(run, reach);
            if reach < coverage.end() {
                self.held_in(slot, run, reach, &mut followers);
                behind.push((run, reach));
            }
        }
        // Ends first, so that what hangs from a run is gone before the run is.
        for (run, from) in behind.into_iter().rev() {
            self.release_from(slot, run, from);
        }
        self.set_aside(slot, followers);
    }
}
