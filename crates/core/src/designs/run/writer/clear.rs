//! Forgetting everything of a rank: along its own list of runs, never through the whole index.

use super::Writer;
use super::coverage::Coverage;
use super::waiting::Waiting;
use crate::RankSize;
use crate::designs::run::published::ranks::RankSlot;

impl Writer {
    /// Forgets all that the rank holds, and says how many blocks that was. Costs the runs that it
    /// holds, and the blocks that nobody else does.
    pub(super) fn clear(&mut self, slot: RankSlot) -> u64 {
        let rank = self.ranks.get_mut(slot);
        let blocks = rank.size.blocks as u64;
        rank.size = RankSize::default();
        rank.waiting = Waiting::default();
        rank.extra_copies.clear();
        let domain = rank.domain;
        let runs = std::mem::take(&mut rank.runs);
        rank.runs_held = 0;
        // Those that were listed last hang from those that were listed first.
        for &run in runs.iter().rev() {
            let state = self.runs.get(run);
            let (len, is_single) = (state.len, state.columns.is_single());
            let end = self.coverage_end(run, slot);
            if end == 0 {
                continue;
            }
            self.set_coverage(slot, run, Coverage::default());
            if end == len || !is_single {
                self.trim(run, domain);
            }
        }
        blocks
    }
}
