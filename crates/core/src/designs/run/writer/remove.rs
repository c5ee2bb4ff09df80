//! Removals: engines give up chains from their ends, so after one search the next block is usually
//! the neighbour of the last.

use std::ops::Range;

use super::Writer;
use super::names::LineId;
use super::place::Cursor;
use crate::designs::run::published::layout::RunId;
use crate::designs::run::published::ranks::RankSlot;
use crate::{Applied, RemovedCopies, SequenceHash, Tier};

impl Writer {
    pub(super) fn remove(
        &mut self,
        slot: RankSlot,
        tier: Tier,
        blocks: &[SequenceHash],
        copies: RemovedCopies,
    ) -> Applied {
        let mut applied = Applied::default();
        let mut rest = blocks;
        let mut nearby = [LineId::NONE; 2];
        while let Some((&name, more)) = rest.split_first() {
            let at = self.named_near(slot, nearby, name);
            let held = at.and_then(|at| Some((at, self.held_from(slot, at.place, tier)?)));
            rest = more;
            let Some((at, held_from)) = held else {
                applied += self.remove_waiting(slot, tier, name, copies);
                continue;
            };
            let (before, first) = self.held_before(slot, at, held_from, more);
            nearby = [first.line, self.names.previous(first.line)];
            rest = &more[before..];
            if let Some(&next) = rest.first() {
                // It comes from memory while this stretch is forgotten.
                self.domains.get(self.ranks.get(slot).domain).directory.prefetch(next);
            }
            applied.removed += before as u64 + 1;
            self.remove_stretch(slot, at.place.run, first.place.offset..at.place.offset + 1, (tier, copies));
        }
        applied
    }

    /// The block that the rank's domain calls so, if it does not wait. Looked for in lines of names near the
    /// last one first: a stretch that is interrupted goes on behind the gap.
    fn named_near(&self, slot: RankSlot, nearby: [LineId; 2], name: SequenceHash) -> Option<Cursor> {
        let rank = self.ranks.get(slot);
        if rank.waiting.contains(name) {
            return None;
        }
        let lines = nearby.into_iter().filter(|&line| line != LineId::NONE);
        let near = lines.filter_map(|line| Some(Cursor { place: self.names.find_in(line, name)?, line })).next();
        near.or_else(|| self.named(rank.domain, name))
    }

    /// How many of `names` are the blocks right before one, in the interval from `held_from` on that the rank holds, and
    /// where the first of these blocks is.
    fn held_before(&self, slot: RankSlot, at: Cursor, held_from: u16, names: &[SequenceHash]) -> (usize, Cursor) {
        if !self.ranks.get(slot).waiting.is_empty() {
            return (0, at);
        }
        let most = names.len().min(usize::from(at.place.offset - held_from));
        self.named_before(at, &names[..most])
    }

    /// Takes a copy, or all, of blocks that the rank holds in the tier.
    fn remove_stretch(&mut self, slot: RankSlot, run: RunId, range: Range<u16>, (tier, copies): (Tier, RemovedCopies)) {
        let extra = &self.ranks.get(slot).extra_copies;
        if extra.is_empty() {
            return self.release(slot, run, range, tier);
        }
        match copies {
            RemovedCopies::All => {
                self.change_copies(slot, run, (tier, range.clone()), |_| 0);
                self.release(slot, run, range, tier);
            }
            RemovedCopies::One => {
                let last_copies = extra.without(run, tier, range.clone());
                self.change_copies(slot, run, (tier, range), |copies| copies.saturating_sub(1));
                for range in last_copies.into_iter().rev() {
                    self.release(slot, run, range, tier);
                }
            }
        }
    }

    fn remove_waiting(&mut self, slot: RankSlot, tier: Tier, name: SequenceHash, copies: RemovedCopies) -> Applied {
        let rank = self.ranks.get_mut(slot);
        let Some(block) = rank.waiting.get_mut(name).filter(|block| block.copies[tier] > 0) else {
            return Applied { unknown: 1, ..Applied::default() };
        };
        block.copies[tier] = match copies {
            RemovedCopies::One => block.copies[tier] - 1,
            RemovedCopies::All => 0,
        };
        if block.copies[tier] == 0 {
            rank.size.by_tier[tier] -= 1;
            if block.copies.is_zero() {
                rank.waiting.remove(name);
                rank.size.blocks -= 1;
                rank.size.waiting -= 1;
            }
        }
        Applied { removed: 1, ..Applied::default() }
    }
}
