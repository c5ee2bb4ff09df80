//! Reference counts above one. Some engines keep several physical copies of a prompt that they computed more than
//! once.
//!
//! Copies of a prompt appear and disappear together, so the counts are kept by interval and not by block.

use std::collections::hash_map;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::runs::map_bytes;
use crate::Tier;
use crate::run::published::layout::RunId;

/// Reference counts above one of a rank's blocks. All values count the references beyond the first.
#[derive(Debug, Default)]
pub(super) struct ReferenceCounts {
    by_run: FxHashMap<RunId, CountedIntervals>,
    /// Bytes of all intervals.
    interval_bytes: usize,
}

/// Intervals of one run by tier and offset; disjoint, each with a count of at least one.
type CountedIntervals = Vec<CountedInterval>;

/// All intervals, run by run.
pub(super) type ReferenceCountsByRun = hash_map::IntoIter<RunId, CountedIntervals>;

/// Consecutive blocks with the same count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CountedInterval {
    tier: Tier,
    start: u16,
    end: u16,
    copies: u32,
}

impl ReferenceCounts {
    /// References to a block in a tier beyond the first.
    pub(super) fn of(&self, run: RunId, offset: u16, tier: Tier) -> u32 {
        let mut intervals = self.by_run.get(&run).into_iter().flatten();
        let found =
            intervals.find(|interval| interval.tier == tier && (interval.start..interval.end).contains(&offset));
        found.map_or(0, |interval| interval.copies)
    }

    /// Changes the count of each block of a range.
    pub(super) fn change(&mut self, run: RunId, tier: Tier, range: Range<u16>, change: impl Fn(u32) -> u32) {
        let known = self.by_run.get_mut(&run);
        let before = known.as_deref().map(Vec::as_slice).unwrap_or_default();
        let after = with_counts_changed(before, tier, range, change);
        self.interval_bytes = self.interval_bytes + bytes(&after) - known.as_deref().map_or(0, bytes);
        match known {
            // Not `insert`: it would grow a full table although the run is in it.
            Some(known) if !after.is_empty() => *known = after,
            _ if after.is_empty() => drop(self.by_run.remove(&run)),
            _ => drop(self.by_run.insert(run, after)),
        }
    }

    /// The parts of a range whose blocks have exactly one reference, in order.
    pub(super) fn without(&self, run: RunId, tier: Tier, range: Range<u16>) -> Vec<Range<u16>> {
        let intervals = self.by_run.get(&run).into_iter().flatten();
        let mut from = range.start;
        let mut parts = Vec::new();
        for interval in intervals.filter(|interval| interval.meets(tier, &range)) {
            parts.push(from..interval.start.max(from));
            from = interval.end;
        }
        parts.push(from.min(range.end)..range.end);
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// Whether any block of a run has more than one reference.
    pub(super) fn has_run(&self, run: RunId) -> bool {
        self.by_run.contains_key(&run)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_run.is_empty()
    }

    /// Takes the intervals, to be freed.
    pub(super) fn into_runs(self) -> ReferenceCountsByRun {
        self.by_run.into_iter()
    }

    pub(super) fn bytes(&self) -> usize {
        map_bytes(&self.by_run) + self.interval_bytes
    }
}

impl CountedInterval {
    fn meets(&self, tier: Tier, range: &Range<u16>) -> bool {
        self.tier == tier && self.start < range.end && self.end > range.start
    }
}

fn bytes(intervals: &CountedIntervals) -> usize {
    intervals.capacity() * size_of::<CountedInterval>()
}

/// The intervals with the counts of a range changed.
fn with_counts_changed(
    intervals: &[CountedInterval],
    tier: Tier,
    range: Range<u16>,
    change: impl Fn(u32) -> u32,
) -> CountedIntervals {
    let first = intervals.partition_point(|interval| (interval.tier, interval.end) <= (tier, range.start));
    let (before, rest) = intervals.split_at(first);
    let count = rest.iter().take_while(|interval| interval.tier == tier && interval.start <= range.end).count();
    let (touched, after) = rest.split_at(count);

    let mut with_counts_changed = before.to_vec();
    let mut push = |start: u16, end: u16, copies: u32| match with_counts_changed.last_mut() {
        _ if start >= end || copies == 0 => {}
        Some(last) if (last.tier, last.end, last.copies) == (tier, start, copies) => last.end = end,
        _ => with_counts_changed.push(CountedInterval { tier, start, end, copies }),
    };
    let mut from = range.start;
    for interval in touched {
        push(interval.start, range.start, interval.copies);
        push(from, interval.start, change(0));
        push(interval.start.max(range.start), interval.end.min(range.end), change(interval.copies));
        push(range.end, interval.end, interval.copies);
        from = interval.end;
    }
    push(from, range.end, change(0));
    with_counts_changed.extend_from_slice(after);
    with_counts_changed
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Random changes of ranges, compared with one counter for each block.
    #[test]
    fn reference_counts_equal_one_counter_for_each_block() {
        let (mut copies, mut plain) = (ReferenceCounts::default(), HashMap::new());
        let mut random = 1_u64;
        let mut below = |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % end
        };
        for _ in 0..20_000 {
            let run = RunId(below(3) as u32 + 1);
            let tier = [Tier::Device, Tier::Host][below(2) as usize];
            let start = below(20) as u16;
            let range = start..start + below(8) as u16;
            let plain_of = |plain: &HashMap<_, u32>, at| plain.get(&(run, tier, at)).copied().unwrap_or(0);
            let without: Vec<u16> = copies.without(run, tier, range.clone()).into_iter().flatten().collect();
            assert_eq!(without, range.clone().filter(|&at| plain_of(&plain, at) == 0).collect::<Vec<_>>());
            let change: fn(u32) -> u32 = match below(4) {
                0 => |copies| copies + 1,
                1 => |copies| copies + 2,
                2 => |copies| copies.saturating_sub(1),
                _ => |_| 0,
            };
            for at in range.clone() {
                *plain.entry((run, tier, at)).or_default() = change(plain_of(&plain, at));
            }
            copies.change(run, tier, range, change);
            for at in 0..30 {
                assert_eq!(copies.of(run, at, tier), plain_of(&plain, at));
            }
            let intervals: usize = copies.by_run.values().map(bytes).sum();
            assert_eq!(copies.interval_bytes, intervals);
            assert!(copies.by_run.values().all(|intervals| !intervals.is_empty()));
            let neighbours = copies.by_run.values().flat_map(|intervals| intervals.windows(2));
            for pair in neighbours {
                let touch = (pair[0].tier, pair[0].end) == (pair[1].tier, pair[1].start);
                assert!(!touch || pair[0].copies != pair[1].copies, "they would be one");
            }
        }
    }
}
