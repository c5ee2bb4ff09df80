//! Removals: engines give up chains from their ends, so after one search the next block is usually
//! the neighbour of the last.

use std::ops::Range;

use super::Writer;
use super::names::LINE_NAMES;
use super::place::Cursor;
use crate::designs::run::published::layout::{Place, RunId};
use crate::designs::run::published::ranks::RankSlot;
use crate::{Applied, RemovedCopies, SequenceHash, Tier};

/// Blocks of one run that are found and held, and not released yet.
struct Pending {
    run: RunId,
    range: Range<u16>,
    /// The first of them.
    first: Cursor,
}

impl Writer {
    pub(super) fn remove(
        &mut self,
        slot: RankSlot,
        tier: Tier,
        blocks: &[SequenceHash],
        copies: RemovedCopies,
    ) -> Applied {
        let mut applied = Applied::default();
        let mut pending: Option<Pending> = None;
        for &name in blocks {
            let before = pending.as_ref().and_then(|pending| self.neighbour_before(slot, pending, name));
            let at = before.or_else(|| {
                self.flush(slot, tier, pending.take());
                (!self.ranks.get(slot).waiting.contains(name)).then(|| self.named(self.ranks.get(slot).domain, name))?
            });
            let Some(at) = at.filter(|at| self.holds_in(slot, at.place, tier)) else {
                self.flush(slot, tier, pending.take());
                applied += self.remove_waiting(slot, tier, name, copies);
                continue;
            };
            applied.removed += 1;
            if self.drop_extra_copy(slot, at.place, tier, copies) {
                self.flush(slot, tier, pending.take());
                continue;
            }
            let Place { run, offset } = at.place;
            let end = pending.map_or(offset + 1, |pending| pending.range.end);
            pending = Some(Pending { run, range: offset..end, first: at });
        }
        self.flush(slot, tier, pending);
        applied
    }

    /// The block right before the pending ones, if that is its name.
    fn neighbour_before(&self, slot: RankSlot, pending: &Pending, name: SequenceHash) -> Option<Cursor> {
        let Cursor { place, line } = pending.first;
        let offset = place.offset.checked_sub(1)?;
        let within = usize::from(offset) % LINE_NAMES;
        let line = if within + 1 == LINE_NAMES { self.names.previous(line) } else { line };
        let same = self.names.line(line)[within] == name.0 && self.ranks.get(slot).waiting.is_empty();
        same.then_some(Cursor { place: Place { offset, ..place }, line })
    }

    fn flush(&mut self, slot: RankSlot, tier: Tier, pending: Option<Pending>) {
        if let Some(pending) = pending {
            self.release(slot, pending.run, pending.range, tier);
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
