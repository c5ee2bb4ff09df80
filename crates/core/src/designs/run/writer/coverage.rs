//! Which blocks of one run a rank holds in each tier, where that is more than one interval from the
//! start: after a removal from the middle, or when several tiers are in use.

use crate::{PerTier, Tier};
use std::ops::Range;

/// Disjoint intervals of offsets, in order, none touching the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Intervals(Vec<Range<u16>>);

impl Intervals {
    pub(super) fn from_start(end: u16) -> Self {
        Self(if end == 0 { Vec::new() } else { std::iter::once(0..end).collect() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u16>> {
        self.0.iter().cloned()
    }

    pub(super) fn contains(&self, offset: u16) -> bool {
        self.0.iter().any(|interval| interval.contains(&offset))
    }

    /// The interval that an offset is in.
    pub(super) fn containing(&self, offset: u16) -> Option<Range<u16>> {
        self.0.iter().find(|interval| interval.contains(&offset)).cloned()
    }

    /// A range cut into the parts that are covered and those that are not, in order.
    pub(super) fn parts(&self, range: Range<u16>) -> Vec<(Range<u16>, Covered)> {
        let mut parts = Vec::new();
        let mut from = range.start;
        for interval in self.0.iter().filter(|interval| interval.end > range.start && interval.start < range.end) {
            let covered = interval.start.max(range.start)..interval.end.min(range.end);
            parts.push((from..covered.start, Covered::No));
            from = covered.end;
            parts.push((covered, Covered::Yes));
        }
        parts.push((from..range.end, Covered::No));
        parts.retain(|(part, _)| !part.is_empty());
        parts
    }

    fn end(&self) -> u16 {
        self.0.last().map_or(0, |interval| interval.end)
    }

    /// The end of the interval from the start when there is no other.
    fn as_from_start(&self) -> Option<u16> {
        match self.0.as_slice() {
            [] => Some(0),
            [only] if only.start == 0 => Some(only.end),
            _ => None,
        }
    }

    fn insert(&mut self, new: Range<u16>) {
        let before = self.0.partition_point(|interval| interval.end < new.start);
        let touched = self.0[before..].partition_point(|interval| interval.start <= new.end);
        let merged = self.0[before..before + touched]
            .iter()
            .fold(new, |merged, interval| merged.start.min(interval.start)..merged.end.max(interval.end));
        self.0.splice(before..before + touched, std::iter::once(merged));
    }

    fn remove(&mut self, gone: &Range<u16>) {
        let pieces = self.0.iter().flat_map(|interval| {
            let left = interval.start..interval.end.min(gone.start);
            let right = interval.start.max(gone.end)..interval.end;
            [left, right]
        });
        self.0 = pieces.filter(|piece| !piece.is_empty()).collect();
    }
}

/// Whether some part of a range is in the intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Covered {
    Yes,
    No,
}

/// Intervals in each tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Coverage(PerTier<Intervals>);

impl Coverage {
    /// An interval from the start in one tier.
    pub(super) fn plain(tier: Tier, end: u16) -> Self {
        let mut coverage = Self::default();
        coverage.0[tier] = Intervals::from_start(end);
        coverage
    }

    pub(super) fn tier(&self, tier: Tier) -> &Intervals {
        &self.0[tier]
    }

    pub(super) fn insert(&mut self, tier: Tier, range: Range<u16>) {
        self.0[tier].insert(range);
    }

    pub(super) fn remove(&mut self, tier: Tier, range: &Range<u16>) {
        self.0[tier].remove(range);
    }

    /// Bytes behind the intervals.
    pub(super) fn heap_bytes(&self) -> usize {
        self.0.iter().map(|(_, intervals)| intervals.0.capacity() * size_of::<Range<u16>>()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, intervals)| intervals.is_empty())
    }

    /// Whether any tier holds the block.
    pub(super) fn contains(&self, offset: u16) -> bool {
        self.0.iter().any(|(_, intervals)| intervals.contains(offset))
    }

    /// How many blocks of a range no tier but this one holds.
    pub(super) fn count_only_in(&self, tier: Tier, range: Range<u16>) -> usize {
        let others = || self.0.iter().filter(|&(other, _)| other != tier).map(|(_, intervals)| intervals);
        if others().all(Intervals::is_empty) {
            return range.len();
        }
        range.filter(|&offset| !others().any(|intervals| intervals.contains(offset))).count()
    }

    /// One more than the last held offset.
    pub(super) fn end(&self) -> u16 {
        self.0.iter().map(|(_, intervals)| intervals.end()).max().unwrap_or(0)
    }

    /// The end of the interval from the start when there is nothing besides it in `home`.
    pub(super) fn as_plain(&self, home: Tier) -> Option<u16> {
        let only_home = self.0.iter().all(|(tier, intervals)| tier == home || intervals.is_empty());
        self.0[home].as_from_start().filter(|_| only_home)
    }

    /// How many of the first blocks, all of which some tier holds, have each tier as the fastest.
    pub(super) fn fastest(&self, blocks: u16) -> PerTier<u32> {
        let mut counts = PerTier::default();
        let mut left: Vec<Range<u16>> = std::iter::once(0..blocks).collect();
        for (tier, intervals) in self.0.iter() {
            let parts: Vec<_> = left.into_iter().flat_map(|range| intervals.parts(range)).collect();
            let (here, slower): (Vec<_>, Vec<_>) = parts.into_iter().partition(|&(_, covered)| covered == Covered::Yes);
            counts[tier] = here.iter().map(|(part, _)| part.len() as u32).sum();
            left = slower.into_iter().map(|(part, _)| part).collect();
        }
        counts
    }

    /// How far the blocks go from the start when `slowest` and faster tiers are used together.
    pub(super) fn reach(&self, slowest: Tier) -> u16 {
        let mut reach = 0;
        loop {
            let tiers = Tier::ALL.into_iter().take_while(|&tier| tier <= slowest);
            let mut intervals = tiers.flat_map(|tier| &self.0[tier].0);
            match intervals.find(|interval| interval.start <= reach && reach < interval.end) {
                None => return reach,
                Some(interval) => reach = interval.end,
            }
        }
    }
}
