//! Ranks of one run that hold more than one interval from its start, with their intervals.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use super::coverage::{Coverage, Interval, OFFSET_MASK, RANK_SHIFT, span_of};
use crate::Tier;
use crate::run::effort::{self, Effort};
use crate::run::published::rank_table::RankSlot;

/// Intervals of all exceptional ranks of a run, by rank, tier and offset; disjoint and not adjacent.
///
/// A run with few intervals keeps them in one sorted list, which mostly fits into two inline cache lines. A run with
/// many intervals has a list for each rank: finding a rank takes logarithmic time, and a change moves no other rank's
/// intervals.
#[derive(Debug)]
pub(super) enum Exceptions {
    Few(SmallVec<[Interval; INLINE]>),
    Many(Box<ByRank>),
}

/// With the length and the discriminant, two cache lines.
const INLINE: usize = 14;
const _: () = assert!(size_of::<Exceptions>() == 128);

/// Most intervals of one list for several ranks.
const FEW_MAX: usize = 64;
/// With at most this many intervals, lists by rank become one list again.
const FEW_MIN: usize = INLINE;

/// A list of intervals for each of many ranks.
#[derive(Debug, Default)]
pub(super) struct ByRank {
    ranks: BTreeMap<RankSlot, RankExceptions>,
    /// Number of ranks that end at each offset.
    ends: BTreeMap<u16, u32>,
    intervals: usize,
    /// Heap bytes of the lists.
    list_bytes: usize,
}

/// Intervals of one rank.
type RankExceptions = SmallVec<[Interval; 2]>;

/// Upper bound on the bytes of an entry in the table of ranks.
const RANK_BYTES: usize = 2 * (size_of::<RankSlot>() + size_of::<RankExceptions>());

impl Default for Exceptions {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

impl Exceptions {
    /// Remaining coverage of a rank that had an exception.
    pub(super) fn remaining(&self, rank: RankSlot) -> Coverage<'_> {
        self.of(rank).unwrap_or(Coverage::NOTHING)
    }

    /// Coverage of a rank, if it is an exception.
    pub(super) fn of(&self, rank: RankSlot) -> Option<Coverage<'_>> {
        let of_rank = match self {
            Self::Few(list) => &list[span_of(list, u64::from(rank.0), RANK_SHIFT)],
            Self::Many(by_rank) => by_rank.ranks.get(&rank)?,
        };
        (!of_rank.is_empty()).then_some(Coverage::Exception(of_rank))
    }

    /// Every exceptional rank with its coverage.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RankSlot, Coverage<'_>)> {
        let (few, many) = match self {
            Self::Few(list) => (&list[..], None),
            Self::Many(by_rank) => (&[][..], Some(by_rank.ranks.values())),
        };
        let by_rank = few.chunk_by(|a, b| a.rank() == b.rank()).chain(many.into_iter().flatten().map(|list| &list[..]));
        by_rank.map(|of_rank| (of_rank[0].rank(), Coverage::Exception(of_rank)))
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Few(list) => list.is_empty(),
            Self::Many(by_rank) => by_rank.ranks.is_empty(),
        }
    }

    /// Number of intervals of all ranks.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(by_rank) => by_rank.intervals,
        }
    }

    /// One more than the last offset that any rank holds.
    pub(super) fn end(&self) -> u16 {
        match self {
            Self::Few(list) => {
                effort::spend(Effort::Interval, list.len());
                list.iter().map(|interval| interval.end()).max().unwrap_or(0)
            }
            Self::Many(by_rank) => by_rank.ends.last_key_value().map_or(0, |(&end, _)| end),
        }
    }

    /// Heap bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::Few(list) => list_bytes(list),
            Self::Many(by_rank) => size_of::<ByRank>() + by_rank.ranks.len() * RANK_BYTES + by_rank.list_bytes,
        }
    }

    /// Adds blocks to a rank.
    pub(super) fn insert(&mut self, rank: RankSlot, tier: Tier, blocks: Range<u16>) {
        if let Self::Few(list) = self
            && list.len() >= FEW_MAX
        {
            *self = Self::Many(Box::new(ByRank::of(list)));
        }
        match self {
            Self::Few(list) => insert(list, rank, tier, blocks),
            Self::Many(by_rank) => by_rank.change(rank, |list| insert(list, rank, tier, blocks)),
        }
    }

    /// Removes ranges of blocks from a rank. The ranges are in order, and the rank held each completely.
    pub(super) fn remove(&mut self, rank: RankSlot, tier: Tier, ranges: &[Range<u16>]) {
        match self {
            Self::Few(list) => remove(list, rank, tier, ranges),
            Self::Many(by_rank) => by_rank.change(rank, |list| remove(list, rank, tier, ranges)),
        }
        self.shrink_if_few();
    }

    /// Removes a rank.
    pub(super) fn clear(&mut self, rank: RankSlot) {
        match self {
            Self::Few(list) => {
                let span = span_of(list, u64::from(rank.0), RANK_SHIFT);
                effort::spend(Effort::Interval, list.len() - span.start);
                list.drain(span);
            }
            Self::Many(by_rank) => by_rank.change(rank, SmallVec::clear),
        }
        self.shrink_if_few();
    }

    fn shrink_if_few(&mut self) {
        if let Self::Many(by_rank) = self
            && by_rank.intervals <= FEW_MIN
        {
            *self = Self::Few(by_rank.ranks.values().flatten().copied().collect());
        }
    }
}

impl ByRank {
    fn of(list: &[Interval]) -> Self {
        let mut by_rank = Self::default();
        for of_rank in list.chunk_by(|a, b| a.rank() == b.rank()) {
            by_rank.change(of_rank[0].rank(), |list| list.extend_from_slice(of_rank));
        }
        by_rank
    }

    /// Changes the intervals of one rank.
    fn change(&mut self, rank: RankSlot, change: impl FnOnce(&mut RankExceptions)) {
        let list = self.ranks.entry(rank).or_default();
        let (count, end, bytes) = (list.len(), intervals_end(list), list_bytes(list));
        change(list);
        let (count_after, end_after) = (list.len(), intervals_end(list));
        if list.is_empty() {
            self.ranks.remove(&rank);
            self.list_bytes -= bytes;
        } else {
            self.list_bytes = self.list_bytes + list_bytes(list) - bytes;
        }
        self.intervals = self.intervals + count_after - count;
        if end != end_after {
            self.count_end(end, |ranks| ranks - 1);
            self.count_end(end_after, |ranks| ranks + 1);
        }
    }

    fn count_end(&mut self, end: u16, change: impl FnOnce(u32) -> u32) {
        if end == 0 {
            return;
        }
        let ranks = self.ends.entry(end).or_default();
        *ranks = change(*ranks);
        if *ranks == 0 {
            self.ends.remove(&end);
        }
    }
}

/// One more than the last offset of one rank's intervals: the last interval of each tier decides.
fn intervals_end(list: &[Interval]) -> u16 {
    let last_of = |tier: Tier| list.partition_point(|interval| interval.tier() <= tier).checked_sub(1);
    Tier::ALL.into_iter().filter_map(last_of).map(|last| list[last].end()).max().unwrap_or(0)
}

fn list_bytes<A: smallvec::Array<Item = Interval>>(list: &SmallVec<A>) -> usize {
    if list.spilled() { list.capacity() * size_of::<Interval>() } else { 0 }
}

/// Adds blocks of a rank to sorted intervals.
fn insert<A: smallvec::Array<Item = Interval>>(list: &mut SmallVec<A>, rank: RankSlot, tier: Tier, blocks: Range<u16>) {
    let overlapping = overlapping(list, rank, tier, &blocks);
    let merged = list[overlapping.clone()]
        .iter()
        .fold(blocks, |merged, interval| merged.start.min(interval.start())..merged.end.max(interval.end()));
    replace(list, overlapping, &[Interval::new(rank, tier, merged)]);
}

/// Removes ranges from sorted intervals.
fn remove<A: smallvec::Array<Item = Interval>>(
    list: &mut SmallVec<A>,
    rank: RankSlot,
    tier: Tier,
    ranges: &[Range<u16>],
) {
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return };
    let overlapping = overlapping(list, rank, tier, &(first.start..last.end));
    let mut removed = ranges.iter().peekable();
    let mut left: SmallVec<[Interval; INLINE]> = SmallVec::new();
    let mut leave = |blocks: Range<u16>| {
        if !blocks.is_empty() {
            left.push(Interval::new(rank, tier, blocks));
        }
    };
    for interval in &list[overlapping.clone()] {
        let mut start = interval.start();
        while let Some(range) = removed.next_if(|range| range.start < interval.end()) {
            leave(start..range.start);
            start = range.end;
        }
        leave(start..interval.end());
    }
    replace(list, overlapping, &left);
}

/// Replaces some intervals by others, in place as far as possible, which is nearly always completely.
fn replace<A: smallvec::Array<Item = Interval>>(list: &mut SmallVec<A>, old: Range<usize>, new: &[Interval]) {
    let (in_place, more) = new.split_at(new.len().min(old.len()));
    list[old.start..old.start + in_place.len()].copy_from_slice(in_place);
    if in_place.len() < old.len() {
        effort::spend(Effort::Interval, list.len() - old.start);
        list.drain(old.start + in_place.len()..old.end);
    } else if !more.is_empty() {
        effort::spend(Effort::Interval, list.len() - old.start + more.len());
        list.insert_from_slice(old.end, more);
    }
}

/// Range of a rank's intervals in a tier that overlap or touch `blocks`; an empty range at the insertion point if
/// there are none.
fn overlapping(list: &[Interval], rank: RankSlot, tier: Tier, blocks: &Range<u16>) -> Range<usize> {
    let starts_from = Interval::new(rank, tier, blocks.start..0);
    let starts_until = Interval::new(rank, tier, blocks.end..OFFSET_MASK as u16);
    let start = list.partition_point(|&interval| interval < starts_from);
    let end = start + list[start..].iter().take_while(|&&interval| interval <= starts_until).count();
    let reaches_here = |before: &Interval| before.is_of(rank, tier) && before.end() >= blocks.start;
    start - usize::from(list[..start].last().is_some_and(reaches_here))..end
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const BLOCKS: u16 = 24;

    /// A few or many ranks hold and release random ranges, compared with a plain set of blocks.
    #[test]
    fn exceptions_equal_a_set_of_blocks() {
        let mut random = 1_u64;
        let mut below = |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % end
        };
        let (mut exceptions, mut plain) = (Exceptions::default(), BTreeSet::<(RankSlot, Tier, u16)>::new());
        let (mut was_many, mut was_few_again) = (false, false);
        for step in 0..60_000_u64 {
            // Ranks accumulate blocks for a while and then release them.
            let grows = step / 3_000 % 2 == 0;
            let (rank, tier) = (RankSlot(below(30) as u32), [Tier::Device, Tier::Disk][below(2) as usize]);
            let start = below(u64::from(BLOCKS)) as u16;
            let range = start..(start + 1 + below(4) as u16).min(BLOCKS);
            let held = range.clone().all(|block| plain.contains(&(rank, tier, block)));
            match below(10) {
                0 if !grows => {
                    exceptions.clear(rank);
                    plain.retain(|&(of, ..)| of != rank);
                }
                1..8 if !grows && held => {
                    exceptions.remove(rank, tier, std::slice::from_ref(&range));
                    plain.retain(|&(of, in_tier, block)| (of, in_tier) != (rank, tier) || !range.contains(&block));
                }
                _ if grows => {
                    exceptions.insert(rank, tier, range.clone());
                    plain.extend(range.map(|block| (rank, tier, block)));
                }
                _ => {}
            }
            let is_many = matches!(exceptions, Exceptions::Many(_));
            was_few_again |= was_many && !is_many;
            was_many |= is_many;
            assert_eq!(exceptions.is_empty(), plain.is_empty());
            assert_eq!(exceptions.end(), plain.iter().map(|&(.., block)| block + 1).max().unwrap_or(0));
            let coverage = exceptions.remaining(rank);
            for block in 0..BLOCKS {
                assert_eq!(coverage.tier(tier).contains(block), plain.contains(&(rank, tier, block)));
            }
            if step.is_multiple_of(100) {
                let known: Vec<RankSlot> = exceptions.iter().map(|(rank, _)| rank).collect();
                let expected: BTreeSet<RankSlot> = plain.iter().map(|&(rank, ..)| rank).collect();
                assert_eq!(known, Vec::from_iter(expected));
                if let Exceptions::Many(by_rank) = &exceptions {
                    assert_eq!(by_rank.intervals, by_rank.ranks.values().map(SmallVec::len).sum::<usize>());
                    assert_eq!(by_rank.list_bytes, by_rank.ranks.values().map(list_bytes).sum::<usize>());
                    assert_eq!(by_rank.ends.values().sum::<u32>() as usize, by_rank.ranks.len());
                }
            }
        }
        assert!(was_many && was_few_again);
    }

    /// A rank's change costs its own intervals, however many other ranks have exceptions.
    #[test]
    fn a_change_moves_no_intervals_of_other_ranks_beyond_the_inline_list() {
        let steps_among = |ranks: u32| {
            let mut exceptions = Exceptions::default();
            for rank in (0..ranks).map(RankSlot) {
                for start in (0..100).step_by(2) {
                    exceptions.insert(rank, Tier::Device, start..start + 1);
                }
            }
            let rank = RankSlot(0);
            effort::of(Effort::Interval, || {
                exceptions.remove(rank, Tier::Device, std::slice::from_ref(&(4..5)));
                exceptions.insert(rank, Tier::Device, 4..5);
                exceptions.insert(rank, Tier::Host, 7..9);
                exceptions.clear(rank);
                assert_eq!(exceptions.end(), 99);
            })
        };
        let own = 50 + 2;
        assert!(steps_among(2) <= 4 * (own + FEW_MAX));
        assert_eq!(steps_among(4_000), steps_among(4));
        assert!(steps_among(4_000) <= 4 * (own + FEW_MAX), "{}", steps_among(4_000));
    }
}
