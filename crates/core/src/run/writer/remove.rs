//! Removals: engines give up chains from their ends, so after one search the next block is usually
//! the neighbour of the last.

use std::ops::Range;

use smallvec::SmallVec;

use super::Writer;
use super::names::LINE_NAMES;
use super::place::Cursor;
use crate::run::published::layout::{Place, RunId};
use crate::run::published::ranks::RankSlot;
use crate::{Applied, RemovedCopies, SequenceHash, Tier};

/// Blocks of one run that an event takes from a rank.
#[derive(Debug)]
struct Stretches {
    run: RunId,
    /// In order; each is held as a whole.
    ranges: Ranges,
    /// How many names of the event they are.
    names: usize,
    /// Where the block of the next name is, if that was looked for and found.
    next: Option<Cursor>,
}

/// A run has few holes.
type Ranges = SmallVec<[Range<u16>; 8]>;

impl Writer {
    pub(super) fn remove(
        &mut self,
        slot: RankSlot,
        tier: Tier,
        blocks: &[SequenceHash],
        copies: RemovedCopies,
    ) -> Applied {
        let mut applied = Applied::default();
        let (mut rest, mut next) = (blocks, None);
        while let Some(&name) = rest.first() {
            let at = next.take().or_else(|| self.named_and_placed(slot, name));
            let held = at.map(|at| self.stretches(slot, tier, at, rest)).filter(|held| held.names > 0);
            let Some(held) = held else {
                applied += self.remove_waiting(slot, tier, name, copies);
                rest = &rest[1..];
                continue;
            };
            rest = &rest[held.names..];
            next = held.next;
            let parent = self.runs.get(held.run).parent();
            if let (Some(&name), None) = (rest.first(), next) {
                // The chain goes on in the parent, which comes from memory while these are forgotten.
                self.domains.get(self.ranks.get(slot).domain).directory.prefetch(name);
                self.prefetch_place(parent);
            }
            applied.removed += held.names as u64;
            self.remove_stretches(slot, held.run, &held.ranges, (tier, copies));
            if !rest.is_empty() {
                self.prefetch_exceptions(parent.run);
            }
        }
        applied
    }

    /// How many of `names`, the first of which the cursor stands at, the rank holds in that block's run, each once. They
    /// mostly go backward, past holes too. Holes are made one here and one there.
    fn stretches(&self, slot: RankSlot, tier: Tier, at: Cursor, names: &[SequenceHash]) -> Stretches {
        let (mut at, run) = (at, at.place.run);
        let rank = self.ranks.get(slot);
        // Where something waits, each name is asked whether it does, one by one.
        let names = if rank.waiting.is_empty() { names } else { &names[..1] };
        let coverage = self.coverage(run, slot);
        let held = coverage.tier(tier);
        let mut found = Stretches { run, ranges: Ranges::new(), names: 0, next: None };
        // What has been found lies between these.
        let mut met = 0..0;
        while let Some((interval, end_before)) = held.containing(at.place.offset) {
            let from = if at.place.offset < met.start { interval.start } else { interval.start.max(met.end) };
            let before = &names[found.names + 1..];
            let most = before.len().min(usize::from(at.place.offset - from));
            let (count, first) = self.named_before(at, &before[..most]);
            let range = first.place.offset..at.place.offset + 1;
            met = if found.names == 0 { range.clone() } else { met.start.min(range.start)..met.end.max(range.end) };
            found.ranges.push(range);
            found.names += count + 1;
            found.next = None;
            // A chain goes on in another run.
            let Some(&name) = before.get(count).filter(|_| first.place.offset > 0) else { break };
            let past_hole = end_before.filter(|_| first.place.offset == interval.start);
            found.next =
                past_hole.and_then(|end| self.named_at(first, end - 1, name)).or_else(|| self.named(rank.domain, name));
            match found.next.filter(|next| next.place.run == run && !met.contains(&next.place.offset)) {
                Some(next) => at = next,
                None => break,
            }
        }
        found.ranges.sort_unstable_by_key(|range| range.start);
        found
    }

    /// The block that the rank's domain calls so, if it does not wait.
    fn named_and_placed(&self, slot: RankSlot, name: SequenceHash) -> Option<Cursor> {
        let rank = self.ranks.get(slot);
        if rank.waiting.contains(name) { None } else { self.named(rank.domain, name) }
    }

    /// The block at an offset before the cursor's, if it is called so.
    fn named_at(&self, behind: Cursor, offset: u16, name: SequenceHash) -> Option<Cursor> {
        let line = self.names.line_before(behind.line, behind.place.offset, offset);
        let is_it = self.names.line(line)[usize::from(offset) % LINE_NAMES] == name.0;
        is_it.then_some(Cursor { place: Place { offset, ..behind.place }, line })
    }

    /// Takes a copy, or all, of blocks that the rank holds in the tier.
    fn remove_stretches(
        &mut self,
        slot: RankSlot,
        run: RunId,
        ranges: &[Range<u16>],
        (tier, copies): (Tier, RemovedCopies),
    ) {
        let extra = &self.ranks.get(slot).extra_copies;
        if !extra.are_in(run) {
            return self.release(slot, run, ranges, tier);
        }
        let last_copies: Ranges = match copies {
            RemovedCopies::All => ranges.into(),
            RemovedCopies::One => ranges.iter().flat_map(|range| extra.without(run, tier, range.clone())).collect(),
        };
        for range in ranges {
            self.change_copies(slot, run, (tier, range.clone()), |before| match copies {
                RemovedCopies::All => 0,
                RemovedCopies::One => before.saturating_sub(1),
            });
        }
        if !last_copies.is_empty() {
            self.release(slot, run, &last_copies, tier);
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
