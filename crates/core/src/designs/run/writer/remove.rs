//! Removals: engines give up chains from their ends, so after one search the next block is usually
//! the neighbour of the last.

use super::Writer;
use super::place::Cursor;
use crate::designs::run::published::layout::Place;
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
        while let Some((&name, more)) = rest.split_first() {
            let rank = self.ranks.get(slot);
            let waits = rank.waiting.contains(name);
            let at = self.named(rank.domain, name).filter(|at| !waits && self.holds_in(slot, at.place, tier));
            rest = more;
            let Some(at) = at else {
                applied += self.remove_waiting(slot, tier, name, copies);
                continue;
            };
            applied.removed += 1;
            if self.drop_extra_copy(slot, at.place, tier, copies) {
                continue;
            }
            let (before, first) = self.releasable_before(slot, tier, at, more);
            self.release(slot, at.place.run, first.place.offset..at.place.offset + 1, tier);
            applied.removed += before as u64;
            rest = &more[before..];
        }
        applied
    }

    /// How many of `names` are the blocks right before one that the rank holds, and held like it, so that
    /// all of them can be released at once; and where the first of these blocks is.
    fn releasable_before(&self, slot: RankSlot, tier: Tier, at: Cursor, names: &[SequenceHash]) -> (usize, Cursor) {
        let rank = self.ranks.get(slot);
        // An interval from the start: who holds a block holds those before it.
        let plain = rank.home == tier && self.exception(at.place.run, slot).is_none();
        match plain && rank.waiting.is_empty() && rank.extra_copies.is_empty() {
            true => self.named_before(at, names),
            false => (0, at),
        }
    }

    /// Takes away one of several copies if there are; with all copies gone there is none left to take.
    fn drop_extra_copy(&mut self, slot: RankSlot, place: Place, tier: Tier, copies: RemovedCopies) -> bool {
        let extra = &mut self.ranks.get_mut(slot).extra_copies;
        if extra.is_empty() {
            return false;
        }
        match copies {
            RemovedCopies::All => {
                extra.remove(&(place, tier));
                false
            }
            RemovedCopies::One => match extra.get_mut(&(place, tier)) {
                None => false,
                Some(1) => extra.remove(&(place, tier)).is_some(),
                Some(copies) => {
                    *copies -= 1;
                    true
                }
            },
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
