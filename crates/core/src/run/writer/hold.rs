//! Holdings of ranks: the writer's exact state, and the part of it that is published.
//!
//! A rank nearly always holds one interval from a run's start in its home tier. Then the published end is the exact
//! state. Everything else is an exception: intervals by tier, from which the writer derives the ends of the rank's
//! levels.

use std::ops::Range;

use super::Writer;
use super::coverage::{Coverage, Part};
use super::exceptions::Exceptions;
use super::locate::Cursor;
use crate::run::published::atomics::Relaxed;
use crate::run::published::holdings::{Holder, HoldingsWord, HoldingsWriter};
use crate::run::published::layout::{HOLDINGS, INFO, Info, RunId, RunPosition};
use crate::run::published::rank_table::{HolderAssignment, RankSlot};
use crate::{AppliedChanges, HeldBlock, PerTier, SequenceHash, Tier};

impl Writer {
    /// End of the holder's interval in a run.
    #[inline]
    pub(super) fn end(&self, run: RunId, holder: Holder) -> u16 {
        self.published.run(run).holdings().end(holder)
    }

    pub(super) fn exception(&self, run: RunId, slot: RankSlot) -> Option<Coverage<'_>> {
        self.runs.get(run).exceptions.as_ref()?.of(slot)
    }

    /// The blocks of a run that the rank holds.
    pub(super) fn coverage(&self, run: RunId, slot: RankSlot) -> Coverage<'_> {
        self.exception(run, slot).unwrap_or_else(|| {
            let rank = self.ranks.get(slot);
            Coverage::plain(slot, rank.home, self.end(run, rank.home_holder()))
        })
    }

    /// One more than the last offset that the rank holds in a run.
    pub(super) fn coverage_end(&self, run: RunId, slot: RankSlot) -> u16 {
        match self.exception(run, slot) {
            Some(coverage) => coverage.end(),
            None => self.end(run, self.ranks.get(slot).home_holder()),
        }
    }

    pub(super) fn holds(&self, slot: RankSlot, position: RunPosition) -> bool {
        match self.exception(position.run, slot) {
            Some(coverage) => coverage.contains(position.offset),
            None => position.offset < self.end(position.run, self.ranks.get(slot).home_holder()),
        }
    }

    /// Adds `copies` copies of blocks of a run to a rank.
    pub(super) fn hold(
        &mut self,
        slot: RankSlot,
        run: RunId,
        range: Range<u16>,
        (tier, copies): (Tier, u32),
    ) -> AppliedChanges {
        self.steps.take(1);
        let rank = self.ranks.get(slot);
        if rank.home == tier && self.exception(run, slot).is_none() {
            let end = self.end(run, rank.home_holder());
            if range.start <= end {
                let known = range.start..end.min(range.end);
                let new = known.end..range.end;
                self.add_copies(slot, run, known.clone(), (tier, copies));
                self.add_copies(slot, run, new.clone(), (tier, copies - 1));
                if !new.is_empty() {
                    if end == 0 {
                        self.list(slot, run);
                    }
                    self.publish_plain(slot, run, (end, range.end));
                    let size = &mut self.ranks.get_mut(slot).size;
                    size.blocks += new.len();
                    size.by_tier[tier] += new.len();
                }
                return AppliedChanges {
                    stored: new.len() as u64,
                    duplicate: known.len() as u64,
                    ..AppliedChanges::default()
                };
            }
        }
        self.hold_by_exception(slot, run, range, (tier, copies))
    }

    fn hold_by_exception(
        &mut self,
        slot: RankSlot,
        run: RunId,
        range: Range<u16>,
        (tier, copies): (Tier, u32),
    ) -> AppliedChanges {
        let coverage = self.coverage(run, slot);
        let parts = coverage.tier(tier).parts(range.clone());
        let new = parts.iter().filter(|&&(_, covered)| covered == Part::Gap);
        let new: Vec<Range<u16>> = new.map(|(part, _)| part.clone()).collect();
        let newly_held = coverage.count_only_in(tier, &new);
        if coverage.is_empty() {
            self.list(slot, run);
        }
        let mut applied = AppliedChanges::default();
        for (part, covered) in parts {
            match covered {
                Part::Covered => {
                    applied.duplicate += part.len() as u64;
                    self.add_copies(slot, run, part, (tier, copies));
                }
                Part::Gap => {
                    applied.stored += part.len() as u64;
                    self.add_copies(slot, run, part, (tier, copies - 1));
                }
            }
        }
        self.change_coverage(slot, run, |exceptions| exceptions.insert(slot, tier, range));
        let size = &mut self.ranks.get_mut(slot).size;
        size.blocks += newly_held;
        size.by_tier[tier] += applied.stored as usize;
        applied
    }

    /// Removes the last copy, in a tier, of blocks that the rank held there; `ranges` are in order. Trims blocks that
    /// no rank or run needs any more.
    pub(super) fn release(&mut self, slot: RankSlot, run: RunId, ranges: &[Range<u16>], tier: Tier) {
        debug_assert!(ranges.is_sorted_by(|a, b| a.end <= b.start));
        self.steps.take(1);
        let rank = self.ranks.get(slot);
        let blocks = ranges.iter().map(Range::len).sum::<usize>();
        let end = ranges.last().map_or(0, |last| last.end);
        let plain = rank.home == tier && self.exception(run, slot).is_none();
        let unheld = match ranges {
            [range] if plain && self.end(run, rank.home_holder()) == range.end => {
                self.publish_plain(slot, run, (range.end, range.start));
                if range.start == 0 {
                    self.ranks.get_mut(slot).runs_held -= 1;
                }
                blocks
            }
            _ => {
                let (unheld, holds_nothing) = self.change_coverage(slot, run, |exceptions| {
                    exceptions.remove(slot, tier, ranges);
                    let left = exceptions.remaining(slot);
                    (left.count_only_in(tier, ranges), left.is_empty())
                });
                if holds_nothing {
                    self.ranks.get_mut(slot).runs_held -= 1;
                }
                unheld
            }
        };
        let size = &mut self.ranks.get_mut(slot).size;
        size.blocks -= unheld;
        size.by_tier[tier] -= blocks;
        let state = self.runs.get(run);
        if end == state.len || !state.columns.is_single() {
            let domain = self.ranks.get(slot).domain;
            self.trim(run, domain);
        }
    }

    /// Publishes an interval from the start in the home tier that replaces one with another end.
    pub(super) fn publish_plain(&mut self, slot: RankSlot, run: RunId, (old, end): (u16, u16)) {
        let rank = self.ranks.get(slot);
        let home = rank.home;
        for (tier, holder) in rank.levels.iter() {
            if tier >= home {
                self.publish_end(run, holder, end);
            }
        }
        self.rank_retains(slot, run, (old, end));
    }

    /// Changes the coverage of a run by a rank, as an exception, and publishes the prefix length of each of its
    /// levels.
    pub(super) fn change_coverage<R>(
        &mut self,
        slot: RankSlot,
        run: RunId,
        change: impl FnOnce(&mut Exceptions) -> R,
    ) -> R {
        let rank = self.ranks.get(slot);
        let (home, levels) = (rank.home, rank.levels);
        // A plain interval becomes an exception.
        let exception_end = self.exception(run, slot).map(|coverage| coverage.end());
        let plain = exception_end.is_none().then(|| 0..self.end(run, rank.home_holder()));
        let end_before = exception_end.or(plain.as_ref().map(|plain| plain.end)).unwrap_or(0);
        let exceptions = &mut self.runs.get_mut(run).exceptions;
        let bytes_before = exceptions_bytes(exceptions);
        let changed = exceptions.get_or_insert_default();
        if let Some(plain) = plain.filter(|plain| !plain.is_empty()) {
            changed.insert(slot, home, plain);
        }
        let result = change(changed);
        let left = changed.remaining(slot);
        let (is_plain, end_after) = (left.is_plain(home), left.end());
        let mut prefix_lengths = PerTier::default();
        for (tier, _) in levels.iter() {
            prefix_lengths[tier] = left.prefix_length(tier);
        }
        for (tier, holder) in levels.iter() {
            self.publish_end(run, holder, prefix_lengths[tier]);
        }
        let exceptions = &mut self.runs.get_mut(run).exceptions;
        if let Some(changed) = exceptions.as_mut().filter(|_| is_plain) {
            changed.clear(slot);
            if changed.is_empty() {
                *exceptions = None;
            }
        }
        self.rare_bytes = self.rare_bytes + exceptions_bytes(exceptions) - bytes_before;
        self.rank_retains(slot, run, (end_before, end_after));
        result
    }

    /// Publishes the end of a holder's interval.
    ///
    /// A change is one store, which a reader may or may not see. But a query adds the ends of several runs, and they
    /// must belong to one moment. So an end that opens or closes a gap in a holder's coverage — the holder has blocks
    /// further down without those here — changes together with the run's version: a reader that read the run before
    /// and sees anything later starts again, and so does a reader that meets the change. A run that is held without
    /// the blocks above it opens a gap above.
    pub(super) fn publish_end(&mut self, run: RunId, holder: Holder, end: u16) {
        let old = self.end(run, holder);
        if old == end {
            return;
        }
        let state = self.runs.get(run);
        let info = self.info(run);
        let opens_gap = end < old && state.children > 0 && state.deepest_child >= end;
        let closes_gap = end > old && (info.has(Info::RAGGED) || state.exceptions.is_some());
        if old == 0 {
            let parent = state.parent();
            if parent != RunPosition::ROOT && self.end(parent.run, holder) <= parent.offset {
                self.set_flag(parent.run, Info::RAGGED);
            }
        }
        let Self { published, extents, holders, version, .. } = self;
        let record = published.run(run).record;
        let mut writer = HoldingsWriter { record, lists: &published.lists, extents, holders_end: holders.end() };
        let mut new_form = None;
        if opens_gap || closes_gap {
            *version += 2;
            published.run(run).change(*version, || {
                new_form = writer.set_end(holder, end);
                if opens_gap {
                    record[INFO].store(info.0 | Info::RAGGED, Relaxed);
                }
            });
        } else {
            new_form = writer.set_end(holder, end);
        }
        if let Some(form) = new_form {
            let old = HoldingsWord(record[HOLDINGS].load(Relaxed)).extent();
            self.change_run(run, |run| run.record[HOLDINGS].store(form.0, Relaxed));
            if let Some(extent) = old {
                self.extents.free(extent);
            }
        }
    }

    /// Lists a run in which the rank held nothing before.
    pub(super) fn list(&mut self, slot: RankSlot, run: RunId) {
        let rank = self.ranks.get(slot);
        let room = rank.runs.capacity();
        let is_copying = |rank| self.compaction.as_ref().is_some_and(|compaction| compaction.is_copying(rank));
        if rank.runs.len() > 2 * rank.runs_held + 64 && !is_copying(rank.rank) {
            let held = self.runs_of(slot);
            self.ranks.get_mut(slot).runs = held;
        }
        let rank = self.ranks.get_mut(slot);
        rank.runs.push(run);
        rank.runs_held += 1;
        let room_after = rank.runs.capacity();
        self.ranks.count_list_capacity(room, room_after);
    }

    /// The runs in which the rank holds blocks, each once.
    pub(super) fn runs_of(&self, slot: RankSlot) -> Vec<RunId> {
        let rank = self.ranks.get(slot);
        let mut runs = rank.runs.clone();
        self.steps.take(runs.len());
        runs.sort_unstable();
        runs.dedup();
        let home = rank.home_holder();
        runs.retain(|&run| self.exception(run, slot).is_some() || self.end(run, home) > 0);
        runs
    }

    fn add_copies(&mut self, slot: RankSlot, run: RunId, range: Range<u16>, (tier, copies): (Tier, u32)) {
        if copies > 0 && !range.is_empty() {
            // The interval itself counts as one reference.
            self.change_copies(slot, run, (tier, range), |before| before.saturating_add(copies).min(u32::MAX - 1));
        }
    }

    /// Changes the reference counts above one of blocks in a tier.
    pub(super) fn change_copies(
        &mut self,
        slot: RankSlot,
        run: RunId,
        (tier, range): (Tier, Range<u16>),
        change: impl Fn(u32) -> u32,
    ) {
        let extra = &mut self.ranks.get_mut(slot).reference_counts;
        let bytes_before = extra.bytes();
        extra.change(run, tier, range, change);
        self.rare_bytes = self.rare_bytes + extra.bytes() - bytes_before;
    }

    /// Reference counts of a block, given the coverage of its run.
    fn copies(&self, slot: RankSlot, RunPosition { run, offset }: RunPosition, coverage: Coverage<'_>) -> PerTier<u32> {
        let counts = &self.ranks.get(slot).reference_counts;
        PerTier(Tier::ALL.map(|tier| match coverage.tier(tier).contains(offset) {
            true => 1 + counts.of(run, offset, tier),
            false => 0,
        }))
    }

    /// Adds a level for the tier if the rank has none; false if the limit of holders is reached.
    pub(super) fn use_tier(&mut self, slot: RankSlot, tier: Tier) -> bool {
        if self.ranks.get(slot).uses(tier) {
            return true;
        }
        if !self.holders.has_room() {
            return false;
        }
        let holder = self.holders.take(slot);
        for run in self.runs_of(slot) {
            let end = self.coverage(run, slot).prefix_length(tier);
            self.publish_end(run, holder, end);
        }
        self.ranks.get_mut(slot).levels.set(tier, holder);
        self.publish_levels(slot);
        true
    }

    /// Publishes the holders of a rank and the levels that they cover.
    pub(super) fn publish_levels(&self, slot: RankSlot) {
        let levels = self.ranks.get(slot).levels;
        self.published.ranks.change(|table| {
            let mut next = Tier::ALL.len() as u8;
            for (tier, holder) in levels.iter().rev() {
                table.set_holder(holder, HolderAssignment { rank: slot, first: tier as u8, last: next - 1 });
                next = tier as u8;
            }
        });
    }

    /// Every block that the rank holds, with the sequence hashes of its own domain.
    pub(super) fn held_by(&self, slot: RankSlot) -> Vec<HeldBlock> {
        let rank = self.ranks.get(slot);
        let mut held: Vec<HeldBlock> = rank.waiting.iter().copied().collect();
        for run in self.runs_of(slot) {
            self.held_in(slot, run, 0, &mut held);
        }
        held
    }

    /// Appends the blocks of a run that the rank holds from an offset on.
    pub(super) fn held_in(&self, slot: RankSlot, run: RunId, from: u16, held: &mut Vec<HeldBlock>) {
        self.held_between(slot, run, from..self.coverage_end(run, slot), held);
    }

    /// Appends the blocks of a part of a run that the rank holds. The part ends where the rank's last block does, or before.
    pub(super) fn held_between(&self, slot: RankSlot, run: RunId, range: Range<u16>, held: &mut Vec<HeldBlock>) {
        let rank = self.ranks.get(slot);
        let coverage = self.coverage(run, slot);
        let mut parent = match range.start.checked_sub(1) {
            Some(offset) => Some(self.sequence_of(rank.domain, RunPosition { run, offset })),
            None => self.parent_sequence(rank.domain, RunPosition { run, offset: 0 }),
        };
        for offset in range {
            let position = RunPosition { run, offset };
            let sequence = self.sequence_of(rank.domain, position);
            if coverage.contains(offset) {
                let copies = self.copies(slot, position, coverage);
                held.push(HeldBlock { sequence, parent, local: self.local_of(position), copies });
            }
            parent = Some(sequence);
        }
    }

    /// A block that the rank holds, indexed or waiting.
    pub(super) fn held_block(&self, slot: RankSlot, sequence: SequenceHash) -> Option<HeldBlock> {
        let rank = self.ranks.get(slot);
        if let Some(waiting) = rank.waiting.get(sequence) {
            return Some(*waiting);
        }
        let position = self.find_sequence(rank.domain, sequence)?.position;
        let coverage = self.coverage(position.run, slot);
        let copies = self.copies(slot, position, coverage);
        let parent = self.parent_sequence(rank.domain, position);
        (!copies.is_zero()).then(|| HeldBlock { sequence, parent, local: self.local_of(position), copies })
    }

    /// Adds one copy in a tier to blocks that the rank holds somewhere.
    pub(super) fn copy(&mut self, slot: RankSlot, tier: Tier, blocks: &[SequenceHash]) -> AppliedChanges {
        let mut applied = AppliedChanges::default();
        for &sequence in blocks {
            let rank = self.ranks.get(slot);
            let waits = rank.waiting.contains(sequence);
            let at = self.find_sequence(rank.domain, sequence).filter(|at| !waits && self.holds(slot, at.position));
            if !waits && at.is_none() {
                applied.unknown += 1;
            } else if !self.use_tier(slot, tier) {
                applied.refused += 1;
            } else if let Some(Cursor { position: RunPosition { run, offset }, .. }) = at {
                applied += self.hold(slot, run, offset..offset + 1, (tier, 1));
            } else {
                applied += self.add_waiting_copies(slot, sequence, (tier, 1));
            }
        }
        applied
    }
}

fn exceptions_bytes(exceptions: &Option<Box<Exceptions>>) -> usize {
    exceptions.as_ref().map_or(0, |exceptions| size_of::<Exceptions>() + exceptions.heap_bytes())
}
