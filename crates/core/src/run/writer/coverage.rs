//! Coverage of a run by a rank: the blocks that the rank holds in each tier.
//!
//! A rank nearly always holds one interval from the start. After a removal from the middle, or with several tiers in
//! use, it is an exception with a list of intervals ([`super::exceptions`]).

use std::fmt;
use std::ops::Range;

use crate::run::published::layout::RUN_BLOCKS_MAX;
use crate::run::published::rank_table::RankSlot;
use crate::{PerTier, Tier};

/// Consecutive blocks that a rank holds in a tier, packed into a word: rank (32 bits), tier (8), start (12), end
/// (12). The order of the words is by rank, tier and offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Interval(u64);

pub(super) const RANK_SHIFT: u32 = 32;
const TIER_SHIFT: u32 = 24;
const START_SHIFT: u32 = 12;
pub(super) const OFFSET_MASK: u64 = (1 << START_SHIFT) - 1;
const _: () = assert!(RUN_BLOCKS_MAX <= OFFSET_MASK as usize);

impl Interval {
    #[inline]
    pub(super) fn new(rank: RankSlot, tier: Tier, blocks: Range<u16>) -> Self {
        let offsets = u64::from(blocks.start) << START_SHIFT | u64::from(blocks.end);
        Self(u64::from(rank.0) << RANK_SHIFT | (tier as u64) << TIER_SHIFT | offsets)
    }

    pub(super) fn rank(self) -> RankSlot {
        RankSlot((self.0 >> RANK_SHIFT) as u32)
    }

    pub(super) fn tier(self) -> Tier {
        Tier::ALL[(self.0 >> TIER_SHIFT) as usize % Tier::ALL.len()]
    }

    pub(super) fn is_of(self, rank: RankSlot, tier: Tier) -> bool {
        self.0 >> TIER_SHIFT == Self::new(rank, tier, 0..0).0 >> TIER_SHIFT
    }

    pub(super) fn start(self) -> u16 {
        (self.0 >> START_SHIFT & OFFSET_MASK) as u16
    }

    pub(super) fn end(self) -> u16 {
        (self.0 & OFFSET_MASK) as u16
    }

    pub(super) fn blocks(self) -> Range<u16> {
        self.start()..self.end()
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} {:?} {:?}", self.rank(), self.tier(), self.blocks())
    }
}

/// Range of the intervals that start with these bits in a sorted list. Mostly all of them do.
#[inline]
pub(super) fn span_of(intervals: &[Interval], key: u64, shift: u32) -> Range<usize> {
    let key_of = |interval: &Interval| interval.0 >> shift;
    let [Some(first), Some(last)] = [intervals.first(), intervals.last()].map(|end| end.map(key_of)) else {
        return 0..0;
    };
    if first == key && last == key {
        return 0..intervals.len();
    }
    let start = intervals.partition_point(|interval| key_of(interval) < key);
    start..start + intervals[start..].partition_point(|interval| key_of(interval) == key)
}

/// The blocks of a run that a rank holds.
#[derive(Debug, Clone, Copy)]
pub(super) enum Coverage<'a> {
    /// At most one interval from the start.
    Plain(Option<Interval>),
    Exception(&'a [Interval]),
}

impl Coverage<'_> {
    /// No blocks.
    pub(super) const NOTHING: Self = Self::Plain(None);

    /// One interval from the start in one tier.
    pub(super) fn plain(rank: RankSlot, tier: Tier, end: u16) -> Self {
        Self::Plain((end > 0).then(|| Interval::new(rank, tier, 0..end)))
    }

    fn intervals(&self) -> &[Interval] {
        match self {
            Self::Plain(interval) => interval.as_slice(),
            Self::Exception(intervals) => intervals,
        }
    }

    /// Intervals with their tiers, fastest tier first.
    pub(super) fn by_tier(&self) -> impl Iterator<Item = (Tier, Range<u16>)> {
        self.intervals().iter().map(|interval| (interval.tier(), interval.blocks()))
    }

    pub(super) fn tier(&self, tier: Tier) -> Intervals<'_> {
        let intervals = self.intervals();
        let Some(first) = intervals.first() else { return Intervals(&[]) };
        let key = Interval::new(first.rank(), tier, 0..0).0 >> TIER_SHIFT;
        Intervals(&intervals[span_of(intervals, key, TIER_SHIFT)])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.intervals().is_empty()
    }

    /// Whether any tier holds the block.
    pub(super) fn contains(&self, offset: u16) -> bool {
        self.intervals().iter().any(|interval| interval.blocks().contains(&offset))
    }

    /// Counts the blocks of some ranges that no tier but this one holds.
    pub(super) fn count_only_in(&self, tier: Tier, ranges: &[Range<u16>]) -> usize {
        if self.is_empty() || self.only_tier() == Some(tier) {
            return ranges.iter().map(Range::len).sum();
        }
        let others = || self.intervals().iter().filter(|interval| interval.tier() != tier);
        let blocks = ranges.iter().cloned().flatten();
        blocks.filter(|offset| !others().any(|interval| interval.blocks().contains(offset))).count()
    }

    /// One more than the last held offset.
    pub(super) fn end(&self) -> u16 {
        self.intervals().iter().map(|interval| interval.end()).max().unwrap_or(0)
    }

    /// Whether it is empty or one interval from the start in `home`.
    pub(super) fn is_plain(&self, home: Tier) -> bool {
        match self.intervals() {
            [] => true,
            [only] => only.start() == 0 && only.tier() == home,
            _ => false,
        }
    }

    /// Counts, by fastest tier, the first `blocks` blocks, each of which some tier holds.
    pub(super) fn fastest(&self, blocks: u16) -> PerTier<u32> {
        let mut counters = PerTier::default();
        let mut left: Vec<Range<u16>> = std::iter::once(0..blocks).collect();
        for tier in Tier::ALL {
            let intervals = self.tier(tier);
            let parts: Vec<_> = left.into_iter().flat_map(|range| intervals.parts(range)).collect();
            let (here, slower): (Vec<_>, Vec<_>) =
                parts.into_iter().partition(|&(_, covered)| covered == Part::Covered);
            counters[tier] = here.iter().map(|(part, _)| part.len() as u32).sum();
            left = slower.into_iter().map(|(part, _)| part).collect();
        }
        counters
    }

    /// The only tier with blocks, if there is exactly one.
    fn only_tier(&self) -> Option<Tier> {
        let (first, last) = (self.intervals().first()?.tier(), self.intervals().last()?.tier());
        (first == last).then_some(first)
    }

    /// Number of leading blocks held in `slowest` and faster tiers together.
    pub(super) fn prefix_length(&self, slowest: Tier) -> u16 {
        if let (Some(first), Some(tier)) = (self.intervals().first(), self.only_tier()) {
            return if tier <= slowest && first.start() == 0 { first.end() } else { 0 };
        }
        let mut prefix_length = 0;
        loop {
            let mut usable = self.intervals().iter().filter(|interval| interval.tier() <= slowest);
            match usable.find(|interval| interval.blocks().contains(&prefix_length)) {
                None => return prefix_length,
                Some(interval) => prefix_length = interval.end(),
            }
        }
    }
}

/// Intervals of a rank in one tier of a run, in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Intervals<'a>(&'a [Interval]);

impl Intervals<'_> {
    pub(super) fn iter(self) -> impl Iterator<Item = Range<u16>> {
        self.0.iter().map(|interval| interval.blocks())
    }

    pub(super) fn contains(self, offset: u16) -> bool {
        self.containing(offset).is_some()
    }

    /// The interval that contains an offset, and the end of the interval before it.
    pub(super) fn containing(self, offset: u16) -> Option<(Range<u16>, Option<u16>)> {
        let until_here = &self.0[..self.0.partition_point(|interval| interval.start() <= offset)];
        let (last, before) = until_here.split_last()?;
        last.blocks().contains(&offset).then(|| (last.blocks(), before.last().map(|interval| interval.end())))
    }

    /// Splits a range into covered parts and gaps, in order.
    pub(super) fn parts(self, range: Range<u16>) -> Vec<(Range<u16>, Part)> {
        let mut parts = Vec::new();
        let mut from = range.start;
        for interval in self.iter().filter(|interval| interval.end > range.start && interval.start < range.end) {
            let covered = interval.start.max(range.start)..interval.end.min(range.end);
            parts.push((from..covered.start, Part::Gap));
            from = covered.end;
            parts.push((covered, Part::Covered));
        }
        parts.push((from..range.end, Part::Gap));
        parts.retain(|(part, _)| !part.is_empty());
        parts
    }
}

/// Whether a part of a range is covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Covered,
    Gap,
}
