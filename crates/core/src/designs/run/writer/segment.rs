//! One part of a directory: lines of slots that say in which line of names a name stands.
//!
//! ```text
//!  line of 64 bytes: ten tags (16 bits) | used slots (16) | counter of names that overflowed (16) | ten places (32)
//!  place: displacement (3) | line of names (29)
//! ```
//!
//! A slot says only in which line of names a name stands; the names of that line tell whether
//! it does, and where. A name for which there is no slot in the line where it belongs stands in one of the
//! next, and its place says how many lines further. So a segment is split without a look at any name: the tag
//! says into which half a slot goes, its line and its displacement where in it.

use std::collections::BTreeSet;
use std::iter;

use super::names::{LineId, Names};
use crate::SequenceHash;
use crate::designs::run::published::layout::Place;
use crate::designs::run::published::prefetch::prefetch;

const SLOTS: usize = 10;
/// Names for each line at which a segment counts as full.
const LINE_NAMES_MAX: usize = 7;
const TAG_BITS: u32 = 16;
/// Lines of a segment that is split rather than doubled.
const SPLIT_LINES: usize = 1_024;
const SEGMENT_LINES_MIN: usize = 2;
/// Lines of slots whose names are asked for ahead when a segment is refilled.
const REFILLED_AHEAD: usize = 3;
/// Segments with fewer lines are not worth halving.
const SHRUNK_LINES_MIN: usize = 64;
/// The bits of a tag that choose the segment tell names of one segment apart no longer.
const DEPTH_MAX: u32 = 10;

/// A name's hash: tag, and line in its segment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hash(u64);

impl Hash {
    #[inline]
    pub(super) fn of(name: SequenceHash) -> Self {
        let mixed = u128::from(name.0 ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        Self((mixed >> 64) as u64 ^ mixed as u64)
    }

    #[inline]
    fn tag(self) -> u16 {
        self.0 as u16
    }

    #[inline]
    fn home(self, lines: usize) -> usize {
        (self.0 >> TAG_BITS) as usize & (lines - 1)
    }

    /// The first bits of the tag.
    #[inline]
    pub(super) fn upper(self, bits: u32) -> usize {
        (u32::from(self.tag()) >> (TAG_BITS - bits)) as usize
    }
}

/// What a slot holds: a line of names, and how far from the line where it belongs the slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SlotPlace(u32);

impl SlotPlace {
    const EMPTY: Self = Self(0);
    const LINE_BITS: u32 = 29;
    /// So many lines or more.
    const FAR: usize = 7;

    fn new(line: LineId, displacement: usize) -> Self {
        assert!(line.0 < 1 << Self::LINE_BITS, "fewer than 2^32 names");
        Self(line.0 | (displacement.min(Self::FAR) as u32) << Self::LINE_BITS)
    }

    #[inline]
    fn line(self) -> LineId {
        LineId(self.0 & ((1 << Self::LINE_BITS) - 1))
    }

    fn displacement(self) -> usize {
        (self.0 >> Self::LINE_BITS) as usize
    }
}

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    tags: [u16; SLOTS],
    /// Slots in use, as bits.
    used: u16,
    /// Names that belong here or before and stand in a later line.
    overflow: u16,
    places: [SlotPlace; SLOTS],
}

impl Line {
    const EMPTY: Self = Self { tags: [0; SLOTS], used: 0, overflow: 0, places: [SlotPlace::EMPTY; SLOTS] };

    /// Slots in use with this tag, as bits.
    #[inline]
    fn with_tag(&self, tag: u16) -> u32 {
        let (eight, [ninth, tenth]) = (self.tags.first_chunk().expect("ten tags"), [self.tags[8], self.tags[9]]);
        let slots = equal_tags(eight, tag) | u32::from(ninth == tag) << 8 | u32::from(tenth == tag) << 9;
        slots & u32::from(self.used)
    }

    #[inline]
    fn free_slot(&self) -> Option<usize> {
        let slot = self.used.trailing_ones() as usize;
        (slot < SLOTS).then_some(slot)
    }

    #[inline]
    fn set(&mut self, slot: usize, tag: u16, place: SlotPlace) {
        self.used |= 1 << slot;
        self.tags[slot] = tag;
        self.places[slot] = place;
    }

    fn clear(&mut self, slots: u16) {
        self.used &= !slots;
    }

    /// Slots in use whose tags have this bit.
    fn with_bit(&self, bit: u16) -> u16 {
        let has_bit = |(slot, tag): (usize, &u16)| u16::from(tag & bit != 0) << slot;
        self.used & self.tags.iter().enumerate().map(has_bit).fold(0, |slots, slot| slots | slot)
    }

    /// Slots in use that belong to another line.
    fn displaced(&self) -> u16 {
        let is_displaced = |(slot, place): (usize, &SlotPlace)| u16::from(place.displacement() > 0) << slot;
        self.used & self.places.iter().enumerate().map(is_displaced).fold(0, |slots, slot| slots | slot)
    }

    /// Tags and places of the slots in use.
    fn slots(&self) -> impl Iterator<Item = (u16, SlotPlace)> {
        ones(self.used).map(|slot| (self.tags[slot], self.places[slot]))
    }
}

/// Which of eight tags are this one, as bits.
#[inline]
fn equal_tags(tags: &[u16; 8], tag: u16) -> u32 {
    // The compiler makes vector code of the comparison by itself, but goes a long way from there to the bits.
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::core_arch::x86::Sse2::try_new() {
        let equal = simd._mm_cmpeq_epi16(bytemuck::cast(*tags), simd._mm_set1_epi16(tag as i16));
        return simd._mm_movemask_epi8(simd._mm_packs_epi16(equal, equal)) as u32 & 0xff;
    }
    tags.iter().enumerate().fold(0, |equal, (slot, &other)| equal | u32::from(other == tag) << slot)
}

/// The numbers of the bits that are set.
fn ones(bits: u16) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)))
        .take_while(|&bits| bits != 0)
        .map(|bits| bits.trailing_zeros() as usize)
}

/// A name taken out of its slot: the line where it belongs, its tag, and its line of names.
type Displaced = (usize, u16, LineId);

/// A part of a directory.
#[derive(Debug)]
pub(super) struct Segment {
    lines: Vec<Line>,
    count: usize,
    /// How many upper bits of their tags all names of the segment share, and which.
    depth: u32,
    prefix: usize,
}

impl Default for Segment {
    fn default() -> Self {
        Self { lines: vec![Line::EMPTY; SEGMENT_LINES_MIN], count: 0, depth: 0, prefix: 0 }
    }
}

impl Segment {
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn prefix(&self) -> usize {
        self.prefix
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a name more would make it too full to be fast.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.count >= self.lines.len() * LINE_NAMES_MAX
    }

    /// Whether so many names more leave it fast.
    #[inline]
    pub(super) fn has_room_for(&self, count: usize) -> bool {
        self.count + count <= self.lines.len() * LINE_NAMES_MAX
    }

    /// Whether half of it would be much too large as well.
    pub(super) fn is_sparse(&self) -> bool {
        self.lines.len() >= SHRUNK_LINES_MIN && self.count * 5 < self.lines.len() * SLOTS
    }

    pub(super) fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    #[inline]
    pub(super) fn prefetch(&self, hash: Hash) {
        prefetch(&self.lines[hash.home(self.lines.len())]);
    }

    /// Whether the name's line alone does not rule it out.
    #[inline]
    pub(super) fn may_know(&self, hash: Hash) -> bool {
        let line = &self.lines[hash.home(self.lines.len())];
        line.overflow != 0 || line.with_tag(hash.tag()) != 0
    }

    pub(super) fn find(&self, names: &Names, name: SequenceHash, hash: Hash) -> Option<(Place, LineId)> {
        let mut at = hash.home(self.lines.len());
        for _ in 0..self.lines.len() {
            let line = &self.lines[at];
            let mut candidates = line.with_tag(hash.tag());
            while candidates != 0 {
                let candidate = line.places[candidates.trailing_zeros() as usize].line();
                if let Some(place) = names.find_in(candidate, name) {
                    return Some((place, candidate));
                }
                candidates &= candidates - 1;
            }
            if line.overflow == 0 {
                return None;
            }
            at = (at + 1) & (self.lines.len() - 1);
        }
        None
    }

    /// Takes in a name; the segment is not full.
    #[inline]
    pub(super) fn put(&mut self, hash: Hash, place: LineId) {
        self.put_at((hash.home(self.lines.len()), hash.tag(), place));
        self.count += 1;
    }

    #[inline]
    fn put_at(&mut self, (home, tag, place): Displaced) {
        let mut displacement = 0;
        loop {
            let at = (home + displacement) & (self.lines.len() - 1);
            let line = &mut self.lines[at];
            if let Some(slot) = line.free_slot() {
                line.set(slot, tag, SlotPlace::new(place, displacement));
                return;
            }
            line.overflow += 1;
            displacement += 1;
        }
    }

    /// Forgets a name that is here.
    #[inline]
    pub(super) fn remove(&mut self, hash: Hash, place: LineId) {
        let mask = self.lines.len() - 1;
        let home = hash.home(self.lines.len());
        let mut at = home;
        // Two names of one line may share tag and home: their slots are alike, either will do.
        let slot = loop {
            let line = &self.lines[at];
            let mut candidates = line.with_tag(hash.tag());
            while candidates != 0 && line.places[candidates.trailing_zeros() as usize].line() != place {
                candidates &= candidates - 1;
            }
            if candidates != 0 {
                break candidates.trailing_zeros() as usize;
            }
            assert_ne!(line.overflow, 0, "the name is in the directory");
            at = (at + 1) & mask;
        };
        self.lines[at].clear(1 << slot);
        let mut passed = home;
        while passed != at {
            self.lines[passed].overflow -= 1;
            passed = (passed + 1) & mask;
        }
        self.count -= 1;
    }

    pub(super) fn can_be_split(&self) -> bool {
        self.lines.len() >= SPLIT_LINES && self.depth < DEPTH_MAX
    }

    /// Takes the names out whose tags go on with a one, into a segment of their own.
    pub(super) fn split(&mut self, names: &Names) -> Self {
        let displaced = self.take_displaced(names);
        let depth = self.depth + 1;
        let bit = 1 << (TAG_BITS - depth);
        let lines = vec![Line::EMPTY; self.lines.len()];
        let mut upper = Self { lines, count: 0, depth, prefix: self.prefix << 1 | 1 };
        (self.depth, self.prefix) = (depth, self.prefix << 1);
        for (from, to) in self.lines.iter_mut().zip(&mut upper.lines) {
            let going = from.with_bit(bit);
            for (new, slot) in ones(going).enumerate() {
                to.set(new, from.tags[slot], from.places[slot]);
            }
            from.clear(going);
            upper.count += going.count_ones() as usize;
        }
        self.count -= upper.count;
        for displaced in displaced {
            let (_, tag, _) = displaced;
            let half = if tag & bit != 0 { &mut upper } else { &mut *self };
            half.put_at(displaced);
            half.count += 1;
        }
        upper
    }

    /// Takes out all names that do not stand where they belong. Without them nothing has overflowed.
    fn take_displaced(&mut self, names: &Names) -> Vec<Displaced> {
        let mask = self.lines.len() - 1;
        let (mut displaced, mut far) = (Vec::new(), Vec::new());
        for (at, line) in self.lines.iter_mut().enumerate() {
            line.overflow = 0;
            let going = line.displaced();
            for slot in ones(going) {
                let (tag, place) = (line.tags[slot], line.places[slot]);
                match place.displacement() {
                    SlotPlace::FAR => far.push((tag, place.line())),
                    displacement => displaced.push((at.wrapping_sub(displacement) & mask, tag, place.line())),
                }
            }
            line.clear(going);
        }
        if !far.is_empty() {
            let homes = self.homes_of_far(names, far, &displaced);
            displaced.extend(homes);
        }
        self.count -= displaced.len();
        displaced
    }

    /// The lines where names belong that stand so far from them that their slots do not say it: only the
    /// names do. Of names that are alike, those are meant whose slots are not found otherwise.
    fn homes_of_far(&self, names: &Names, mut far: Vec<(u16, LineId)>, displaced: &[Displaced]) -> Vec<Displaced> {
        far.sort_unstable();
        let mut found = Vec::with_capacity(far.len());
        for alike in far.chunk_by(|a, b| a == b) {
            let (tag, place) = alike[0];
            let hashes = names_with_tag(names, tag, place);
            let mut homes: Vec<usize> = hashes.map(|hash| hash.home(self.lines.len())).collect();
            let near = displaced.iter().filter(|&&(_, other, line)| (other, line) == (tag, place));
            let mut accounted: Vec<usize> = near.map(|&(home, ..)| home).collect();
            for &home in homes.iter().collect::<BTreeSet<_>>() {
                let at_home = self.lines[home].slots().filter(|&slot| slot == (tag, SlotPlace::new(place, 0)));
                accounted.extend(at_home.map(|_| home));
            }
            for home in accounted {
                let at = homes.iter().position(|&other| other == home);
                homes.swap_remove(at.expect("every slot stands for a name"));
            }
            found.extend(homes.into_iter().map(|home| (home, tag, place)));
        }
        found
    }

    /// Twice the lines: which of two a name belongs to, only the name says.
    pub(super) fn double(&mut self, names: &Names) {
        self.refill(names, self.lines.len() * 2);
    }

    /// Half of the lines, for few names.
    pub(super) fn halve(&mut self, names: &Names) {
        self.refill(names, self.lines.len() / 2);
    }

    fn refill(&mut self, names: &Names, lines: usize) {
        let entries = self.entries(names);
        self.lines = vec![Line::EMPTY; lines];
        self.count = 0;
        for (hash, line) in entries {
            self.put(hash, line);
        }
    }

    /// Every name of the segment, by its hash, and its line.
    fn entries(&self, names: &Names) -> Vec<(Hash, LineId)> {
        let mut entries = Vec::with_capacity(self.count);
        let mut ambiguous = Vec::new();
        // Names come from memory while those of the lines before are read.
        let ahead = self.lines.iter().skip(REFILLED_AHEAD).map(Some).chain(iter::repeat(None));
        let slots = self.lines.iter().zip(ahead).flat_map(|(line, ahead)| {
            ahead.into_iter().flat_map(Line::slots).for_each(|(_, place)| names.prefetch(place.line()));
            line.slots()
        });
        for (tag, place) in slots {
            let mut found = names_with_tag(names, tag, place.line());
            match (found.next(), found.next()) {
                (Some(hash), None) => entries.push((hash, place.line())),
                _ => ambiguous.push((place.line(), tag)),
            }
        }
        // Names of one line with one tag have slots that look alike: each name once.
        ambiguous.sort_unstable();
        ambiguous.dedup();
        for (place, tag) in ambiguous {
            entries.extend(names_with_tag(names, tag, place).map(|hash| (hash, place)));
        }
        entries
    }
}

/// Hashes of the names in a line that have a tag.
fn names_with_tag(names: &Names, tag: u16, place: LineId) -> impl Iterator<Item = Hash> {
    let hashes = names.line(place).iter().map(|&name| Hash::of(SequenceHash(name)));
    hashes.filter(move |hash| hash.tag() == tag)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::names::Column;
    use super::*;
    use crate::designs::run::published::layout::RunId;

    /// Names that crowd into a few lines, far from where they belong, some of them alike in every way that
    /// slots can tell: split or doubled, the segment knows each of them.
    #[test]
    fn crowded_names_are_found_after_growth() {
        let of_home = |home: usize| move |name: &u64| Hash::of(SequenceHash(*name)).home(SPLIT_LINES) == home;
        let mut crowd: Vec<u64> = (0..1 << 20).filter(of_home(7)).take(400).collect();
        crowd.extend((0..1 << 20).filter(of_home(SPLIT_LINES - 1)).take(90));
        // Equal tags beside each other share lines of names.
        crowd.sort_unstable_by_key(|&name| Hash::of(SequenceHash(name)).tag());
        let alike = |pair: &[u64]| Hash::of(SequenceHash(pair[0])).tag() == Hash::of(SequenceHash(pair[1])).tag();
        assert!(crowd.windows(2).any(alike), "some share tag and home");

        for split in [false, true] {
            let (mut names, mut column) = (Names::default(), Column::default());
            let mut lower = Segment { lines: vec![Line::EMPTY; SPLIT_LINES], ..Segment::default() };
            let mut placed = Vec::new();
            for &name in &crowd {
                let name = SequenceHash(name);
                let line = names.push(RunId(1), &mut column, name);
                lower.put(Hash::of(name), line);
                placed.push((name, line));
            }
            let far =
                lower.lines.iter().flat_map(Line::slots).filter(|(_, place)| place.displacement() == SlotPlace::FAR);
            assert!(far.count() > 100);
            let mut upper = Segment::default();
            if split {
                upper = lower.split(&names);
            } else {
                lower.double(&names);
            }
            let half = |name: SequenceHash, depth: u32| split && Hash::of(name).upper(depth) & 1 == 1;
            for &(name, line) in &placed {
                let hash = Hash::of(name);
                let segment = if half(name, 1) { &upper } else { &lower };
                assert_eq!(segment.find(&names, name, hash).map(|(_, found)| found), Some(line));
            }
            for &(name, line) in &placed {
                let segment = if half(name, 1) { &mut upper } else { &mut lower };
                segment.remove(Hash::of(name), line);
            }
            assert!(lower.is_empty() && upper.is_empty());
            assert!(lower.lines.iter().all(|line| line.used == 0 && line.overflow == 0), "nothing is left behind");
        }
    }
}
