//! Reading the blocks of a rank in parts, between which other ranks may change.

use super::Writer;
use crate::run::published::rank_table::RankSlot;
use crate::{HeldBlock, HeldReading, PerTier, ReadingProgress};

impl Writer {
    /// Reads at least one and about `blocks_max` further blocks of a rank. Costs these, and the visited runs that the rank
    /// no longer holds.
    pub(in crate::run) fn read_held(&self, reading: &mut HeldReading, blocks_max: usize) -> ReadingProgress {
        let Some(slot) = self.ranks.slot(reading.rank()) else { return reading.set(Vec::new()) };
        if reading.is_of_kept() {
            return self.read_kept(slot, reading, blocks_max);
        }
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
        reading.add_waiting(rank.waiting.iter().copied());
        let progress = reading.end_pass(rank.size.blocks).unwrap_or_else(|| {
            let mut indexed = Vec::new();
            self.runs_of(slot).into_iter().for_each(|run| self.held_in(slot, run, 0, &mut indexed));
            let progress = reading.set(indexed);
            reading.add_waiting(rank.waiting.iter().copied());
            progress
        });
        match progress {
            ReadingProgress::Complete => reading.end_held(),
            ReadingProgress::More => progress,
        }
    }

    /// Reads at most about `blocks_max` removed blocks that the rank's domain keeps because of their descendants.
    fn read_kept(&self, slot: RankSlot, reading: &mut HeldReading, blocks_max: usize) -> ReadingProgress {
        let rank = self.ranks.get(slot);
        for _ in 0..blocks_max.max(1) {
            let Some(unread) = reading.next_unheld() else { return ReadingProgress::Complete };
            self.steps.take(1);
            let unheld = unread.filter(|&sequence| !rank.waiting.contains(sequence));
            let found =
                unheld.and_then(|sequence| Some((sequence, self.find_sequence(rank.domain, sequence)?.position)));
            let Some((sequence, position)) = found.filter(|&(_, position)| !self.holds(slot, position)) else {
                continue;
            };
            let parent = self.parent_sequence(rank.domain, position);
            reading.keep(HeldBlock { sequence, parent, local: self.local_of(position), copies: PerTier::default() });
        }
        ReadingProgress::More
    }
}
