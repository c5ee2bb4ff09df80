//! A name that changes its meaning.
//!
//! The rank is alone in its domain then: it left any shared one, because the others still mean what
//! they said. What it held under the old meaning is forgotten, and what follows the name waits for it
//! to be told anew.

use std::ops::Range;

use super::Writer;
use crate::designs::run::published::layout::{Place, RunId};
use crate::designs::run::published::ranks::RankSlot;
use crate::{HeldBlock, Tier};

impl Writer {
    /// Takes from the rank, which must be alone in its domain, the block at `place` and sets aside all
    /// that it holds below. With that the domain has no name for the place any more. Costs what the
    /// domain has named below it.
    pub(super) fn move_away(&mut self, slot: RankSlot, place: Place) {
        let domain = self.ranks.get(slot).domain;
        let mut below = vec![(place.run, place.offset + 1)];
        let mut followers = Vec::new();
        let mut at = 0;
        while let Some(&(run, from)) = below.get(at) {
            self.held_in(slot, run, from, &mut followers);
            let children = self
                .runs
                .children(run)
                .filter(|&(child, offset)| offset + 1 >= from && self.runs.get(child).columns.get(domain).named > 0);
            below.extend(children.map(|(child, _)| (child, 0)));
            at += 1;
        }
        below[0].1 = place.offset;
        // Ends first, so that trimming meets no run twice.
        for (run, from) in below.into_iter().rev() {
            self.release_from(slot, run, from);
        }
        self.set_aside(slot, followers);
    }

    /// Releases all copies of everything from an offset on.
    pub(super) fn release_from(&mut self, slot: RankSlot, run: RunId, from: u16) {
        let coverage = self.coverage(run, slot);
        let held: Vec<(Tier, Range<u16>)> = coverage.by_tier().filter(|(_, blocks)| blocks.end > from).collect();
        for (tier, blocks) in held {
            let range = blocks.start.max(from)..blocks.end;
            self.change_copies(slot, run, (tier, range.clone()), |_| 0);
            self.release(slot, run, std::slice::from_ref(&range), tier);
        }
    }

    /// Within a bound of memory nothing waits: it is forgotten.
    pub(super) fn set_aside(&mut self, slot: RankSlot, blocks: Vec<HeldBlock>) {
        if self.bounded.is_some() {
            return self.note_forgotten(slot, blocks.iter().map(|block| block.sequence));
        }
        let rank = self.ranks.get_mut(slot);
        for block in blocks {
            rank.size.blocks += 1;
            rank.size.waiting += 1;
            for (tier, &copies) in block.copies.iter() {
                rank.size.by_tier[tier] += usize::from(copies > 0);
            }
            rank.waiting.insert(block);
        }
    }
}
