//! Which blocks of one run a rank holds in each tier, where that is more than one interval from the
//! start: after a removal from the middle, or when several tiers are in use.
//!
//! A run has one list for all of its ranks, in order. It is mostly as short as two lines of the cache, and then it lies
//! in them.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

use crate::designs::run::published::layout::RUN_BLOCKS_MAX;
use crate::designs::run::published::ranks::RankSlot;
use crate::{PerTier, Tier};

/// Blocks next to each other that a rank holds in a tier, in a word: rank (32 bits), tier (8), start (12), end (12). So
/// words in order are intervals by rank, tier and offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Interval(u64);

const RANK_SHIFT: u32 = 32;
const TIER_SHIFT: u32 = 24;
const START_SHIFT: u32 = 12;
const OFFSET_MASK: u64 = (1 << START_SHIFT) - 1;
const _: () = assert!(RUN_BLOCKS_MAX <= OFFSET_MASK as usize);

impl Interval {
    #[inline]
    fn new(rank: RankSlot, tier: Tier, blocks: Range<u16>) -> Self {
        let offsets = u64::from(blocks.start) << START_SHIFT | u64::from(blocks.end);
        Self(u64::from(rank.0) << RANK_SHIFT | (tier as u64) << TIER_SHIFT | offsets)
    }

    fn rank(self) -> RankSlot {
        RankSlot((self.0 >> RANK_SHIFT) as u32)
    }

    fn tier(self) -> Tier {
        Tier::ALL[(self.0 >> TIER_SHIFT) as usize % Tier::ALL.len()]
    }

    fn is_of(self, rank: RankSlot, tier: Tier) -> bool {
        self.0 >> TIER_SHIFT == Self::new(rank, tier, 0..0).0 >> TIER_SHIFT
    }

    fn start(self) -> u16 {
        (self.0 >> START_SHIFT & OFFSET_MASK) as u16
    }

    fn end(self) -> u16 {
        (self.0 & OFFSET_MASK) as u16
    }

    fn blocks(self) -> Range<u16> {
        self.start()..self.end()
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} {:?} {:?}", self.rank(), self.tier(), self.blocks())
    }
}

/// All intervals of the ranks of a run that hold more than one from its start, by rank, tier and offset; disjoint, none
/// touching the next.
///
/// Looking for a rank costs the logarithm of their number, a change may move all of them.
#[derive(Debug, Default)]
pub(super) struct Exceptions(SmallVec<[Interval; INLINE]>);

/// With the length, two lines of the cache.
const INLINE: usize = 15;
const _: () = assert!(size_of::<Exceptions>() == 128);

impl Exceptions {
    /// What a rank of which something was known has now.
    pub(super) fn left_of(&self, rank: RankSlot) -> Coverage<'_> {
        self.of(rank).unwrap_or(Coverage::NOTHING)
    }

    /// What is known of a rank, if anything is.
    pub(super) fn of(&self, rank: RankSlot) -> Option<Coverage<'_>> {
        let of_rank = &self.0[self.span(rank)];
        (!of_rank.is_empty()).then_some(Coverage(Held::Exception(of_rank)))
    }

    /// Every rank of which something is known, with that.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RankSlot, Coverage<'_>)> {
        let by_rank = self.0.chunk_by(|a, b| a.rank() == b.rank());
        by_rank.map(|of_rank| (of_rank[0].rank(), Coverage(Held::Exception(of_rank))))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Intervals of all ranks.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// One more than the last offset that any rank holds.
    pub(super) fn end(&self) -> u16 {
        self.0.iter().map(|interval| interval.end()).max().unwrap_or(0)
    }

    /// Bytes behind the list.
    pub(super) fn heap_bytes(&self) -> usize {
        if self.0.spilled() { self.0.capacity() * size_of::<Interval>() } else { 0 }
    }

    /// The rank holds these blocks as well.
    pub(super) fn insert(&mut self, rank: RankSlot, tier: Tier, blocks: Range<u16>) {
        let met = self.met(rank, tier, &blocks);
        let merged = self.0[met.clone()]
            .iter()
            .fold(blocks, |merged, interval| merged.start.min(interval.start())..merged.end.max(interval.end()));
        self.replace(met, &[Interval::new(rank, tier, merged)]);
    }

    /// The rank does not hold these blocks: ranges in order, each of which it held as a whole.
    pub(super) fn remove(&mut self, rank: RankSlot, tier: Tier, ranges: &[Range<u16>]) {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return };
        let met = self.met(rank, tier, &(first.start..last.end));
        let mut removed = ranges.iter().peekable();
        let mut left: SmallVec<[Interval; INLINE]> = SmallVec::new();
        let mut leave = |blocks: Range<u16>| {
            if !blocks.is_empty() {
                left.push(Interval::new(rank, tier, blocks));
            }
        };
        for interval in &self.0[met.clone()] {
            let mut start = interval.start();
            while let Some(range) = removed.next_if(|range| range.start < interval.end()) {
                leave(start..range.start);
                start = range.end;
            }
            leave(start..interval.end());
        }
        self.replace(met, &left);
    }

    /// Puts others where some intervals are: in their places as far as there are as many, which is nearly always all.
    fn replace(&mut self, old: Range<usize>, new: &[Interval]) {
        let (in_place, more) = new.split_at(new.len().min(old.len()));
        self.0[old.start..old.start + in_place.len()].copy_from_slice(in_place);
        if in_place.len() < old.len() {
            self.0.drain(old.start + in_place.len()..old.end);
        } else if !more.is_empty() {
            self.0.insert_from_slice(old.end, more);
        }
    }

    /// Nothing is known of the rank.
    pub(super) fn clear(&mut self, rank: RankSlot) {
        self.0.drain(self.span(rank));
    }

    fn span(&self, rank: RankSlot) -> Range<usize> {
        span_of(&self.0, u64::from(rank.0), RANK_SHIFT)
    }

    /// Where those intervals of a rank in a tier are that blocks lie in or touch; an empty range where they would be.
    fn met(&self, rank: RankSlot, tier: Tier, blocks: &Range<u16>) -> Range<usize> {
        let starts_from = Interval::new(rank, tier, blocks.start..0);
        let starts_until = Interval::new(rank, tier, blocks.end..OFFSET_MASK as u16);
        let start = self.0.partition_point(|&interval| interval < starts_from);
        let end = start + self.0[start..].iter().take_while(|&&interval| interval <= starts_until).count();
        let reaches_here = |before: &Interval| before.is_of(rank, tier) && before.end() >= blocks.start;
        start - usize::from(self.0[..start].last().is_some_and(reaches_here))..end
    }
}

/// Where the intervals that start with these bits are among intervals in order. Mostly all of them do.
#[inline]
fn span_of(intervals: &[Interval], key: u64, shift: u32) -> Range<usize> {
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

/// What a rank holds of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coverage<'a>(Held<'a>);

#[derive(Debug, Clone, Copy)]
enum Held<'a> {
    /// One interval from the start at most.
    Plain(Option<Interval>),
    Exception(&'a [Interval]),
}

impl Coverage<'_> {
    /// Nothing at all.
    const NOTHING: Self = Self(Held::Plain(None));

    /// An interval from the start in one tier.
    pub(super) fn plain(rank: RankSlot, tier: Tier, end: u16) -> Self {
        Self(Held::Plain((end > 0).then(|| Interval::new(rank, tier, 0..end))))
    }

    fn intervals(&self) -> &[Interval] {
        match &self.0 {
            Held::Plain(interval) => interval.as_slice(),
            Held::Exception(intervals) => intervals,
        }
    }

    /// The intervals of blocks that it holds, fastest tier first.
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

    /// How many blocks of some ranges no tier but this one holds.
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

    /// Whether it is one interval from the start in `home`, or nothing.
    pub(super) fn is_plain(&self, home: Tier) -> bool {
        match self.intervals() {
            [] => true,
            [only] => only.start() == 0 && only.tier() == home,
            _ => false,
        }
    }

    /// How many of the first blocks, all of which some tier holds, have each tier as the fastest.
    pub(super) fn fastest(&self, blocks: u16) -> PerTier<u32> {
        let mut counts = PerTier::default();
        let mut left: Vec<Range<u16>> = std::iter::once(0..blocks).collect();
        for tier in Tier::ALL {
            let intervals = self.tier(tier);
            let parts: Vec<_> = left.into_iter().flat_map(|range| intervals.parts(range)).collect();
            let (here, slower): (Vec<_>, Vec<_>) = parts.into_iter().partition(|&(_, covered)| covered == Covered::Yes);
            counts[tier] = here.iter().map(|(part, _)| part.len() as u32).sum();
            left = slower.into_iter().map(|(part, _)| part).collect();
        }
        counts
    }

    /// The tier of all that it holds, if it is one.
    fn only_tier(&self) -> Option<Tier> {
        let (first, last) = (self.intervals().first()?.tier(), self.intervals().last()?.tier());
        (first == last).then_some(first)
    }

    /// How far the blocks go from the start when `slowest` and faster tiers are used together.
    pub(super) fn reach(&self, slowest: Tier) -> u16 {
        if let (Some(first), Some(tier)) = (self.intervals().first(), self.only_tier()) {
            return if tier <= slowest && first.start() == 0 { first.end() } else { 0 };
        }
        let mut reach = 0;
        loop {
            let mut usable = self.intervals().iter().filter(|interval| interval.tier() <= slowest);
            match usable.find(|interval| interval.blocks().contains(&reach)) {
                None => return reach,
                Some(interval) => reach = interval.end(),
            }
        }
    }
}

/// What a rank holds of a run in one tier, in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Intervals<'a>(&'a [Interval]);

impl Intervals<'_> {
    pub(super) fn iter(self) -> impl Iterator<Item = Range<u16>> {
        self.0.iter().map(|interval| interval.blocks())
    }

    pub(super) fn contains(self, offset: u16) -> bool {
        self.containing(offset).is_some()
    }

    /// The interval that an offset is in, and the end of the one before it.
    pub(super) fn containing(self, offset: u16) -> Option<(Range<u16>, Option<u16>)> {
        let until_here = &self.0[..self.0.partition_point(|interval| interval.start() <= offset)];
        let (last, before) = until_here.split_last()?;
        last.blocks().contains(&offset).then(|| (last.blocks(), before.last().map(|interval| interval.end())))
    }

    /// A range cut into the parts that are covered and those that are not, in order.
    pub(super) fn parts(self, range: Range<u16>) -> Vec<(Range<u16>, Covered)> {
        let mut parts = Vec::new();
        let mut from = range.start;
        for interval in self.iter().filter(|interval| interval.end > range.start && interval.start < range.end) {
            let covered = interval.start.max(range.start)..interval.end.min(range.end);
            parts.push((from..covered.start, Covered::No));
            from = covered.end;
            parts.push((covered, Covered::Yes));
        }
        parts.push((from..range.end, Covered::No));
        parts.retain(|(part, _)| !part.is_empty());
        parts
    }
}

/// Whether some part of a range is in the intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Covered {
    Yes,
    No,
}
