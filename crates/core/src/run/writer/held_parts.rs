//! Reading the blocks of a rank in parts, between which other ranks may change.

use super::Writer;
use crate::run::published::rank_table::RankSlot;
use crate::{HeldReading, ReadingProgress};

impl Writer {
    /// Reads at least one and about `blocks_max` further blocks of a rank. Costs these, and the visited runs that the rank
    /// no longer holds.
    pub(in crate::run) fn read_held(&self, reading: &mut HeldReading, blocks_max: usize) -> ReadingProgress {
        let Some(slot) = self.ranks.slot(reading.rank()) else { return reading.set(Vec::new()) };
        let mut left = blocks_max.max(1);
        while left > 0 {
            let Some(&run) = self.ranks.get(slot).runs.get(reading.entry) else {
                return self.end_pass(slot, reading);
            };
            let from = reading.offset;
            let end = self.coverage_end(run, slot);
            let to = end.min(from.saturating_add(u16::try_from(left).unwrap_or(u16::MAX)));
            if from < to {
                let mut held = Vec::with_capacity(usize::from(to - from));
                self.held_between(slot, run, from..to, &mut held);
                reading.add(held);
            }
            let steps = 1 + usize::from(to.saturating_sub(from));
            self.steps.take(steps);
            left = left.saturating_sub(steps);
            (reading.entry, reading.offset) = if to < end { (reading.entry, to) } else { (reading.entry + 1, 0) };
        }
        ReadingProgress::More
    }

    /// Adds the waiting blocks, which are listed at once, and compares the number of blocks.
    fn end_pass(&self, slot: RankSlot, reading: &mut HeldReading) -> ReadingProgress {
        let rank = self.ranks.get(slot);
        self.steps.take(rank.waiting.len());
        reading.add(rank.waiting.iter().copied());
        let progress = reading.end_pass(rank.size.blocks);
        progress.unwrap_or_else(|| reading.set(self.held_by(slot)))
    }
}
