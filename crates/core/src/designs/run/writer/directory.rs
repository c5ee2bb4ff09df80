//! From an engine's names to blocks: one hash table for each hash domain.
//!
//! ```text
//!  line of 64 bytes: ten tags (16 bits) | used slots (16) | counter of names that overflowed (16) | ten places (32)
//!  place: displaced (1) | line of names (31)
//! ```
//!
//! A slot says only in which line of names a name stands; the eight names of that line tell whether
//! it does, and where. The table is cut into segments by the upper bits of the tags. A segment that is
//! full is doubled while it is small, for which its names are read, and split after that: a name that is
//! not displaced goes on in the line of the same number, on the side that its tag says. So growing
//! never costs more than one segment, and seldom looks at a name.

use std::ops::ControlFlow;

use super::names::{LineId, Names};
use crate::SequenceHash;
use crate::designs::run::published::layout::Place;
use crate::designs::run::published::prefetch::prefetch;

/// How many names before its turn a name's line is asked for.
const PREFETCHED_AHEAD: usize = 16;

const SLOTS: usize = 10;
const TAG_BITS: u32 = 16;
/// Lines of a segment that is split rather than doubled.
const SPLIT_LINES: usize = 1_024;
const SEGMENT_LINES_MIN: usize = 2;
/// The bits of a tag that choose the segment tell names of one segment apart no longer.
const DEPTH_MAX: u32 = 10;

/// What a slot holds: a line of names, and whether a fuller line is where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SlotPlace(u32);

impl SlotPlace {
    const EMPTY: Self = Self(0);
    const DISPLACED: u32 = 1 << 31;

    fn new(line: LineId, displaced: bool) -> Self {
        debug_assert!(line.0 < Self::DISPLACED, "fewer than 2^31 lines of names");
        Self(line.0 | if displaced { Self::DISPLACED } else { 0 })
    }

    fn line(self) -> LineId {
        LineId(self.0 & !Self::DISPLACED)
    }

    fn is_displaced(self) -> bool {
        self.0 & Self::DISPLACED != 0
    }
}

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    tags: [u16; SLOTS],
    /// Slots in use, as bits.
    used: u16,
    /// Names that belong here and stand in a later line.
    overflow: u16,
    places: [SlotPlace; SLOTS],
}

impl Line {
    const EMPTY: Self = Self { tags: [0; SLOTS], used: 0, overflow: 0, places: [SlotPlace::EMPTY; SLOTS] };

    /// Slots in use with this tag, as bits. Four tags at a time in one word.
    #[inline]
    fn with_tag(&self, tag: u16) -> u32 {
        const EACH: u64 = 0x0001_0001_0001_0001;
        const LOW: u64 = 0x7fff * EACH;
        let four = |at: usize| {
            let tags: [u16; 4] = std::array::from_fn(|lane| self.tags.get(at + lane).copied().unwrap_or(0));
            let word =
                u64::from(tags[0]) | u64::from(tags[1]) << 16 | u64::from(tags[2]) << 32 | u64::from(tags[3]) << 48;
            let different = word ^ (u64::from(tag) * EACH);
            // The upper bit of each lane that is zero, and then these four bits side by side.
            let equal = !(((different & LOW) + LOW) | different | LOW) >> 15;
            (equal.wrapping_mul(1 << 45 | 1 << 30 | 1 << 15 | 1) >> 45) as u32 & 15
        };
        (four(0) | four(4) << 4 | four(8) << 8) & u32::from(self.used)
    }

    #[inline]
    fn free_slot(&self) -> Option<usize> {
        let slot = self.used.trailing_ones() as usize;
        (slot < SLOTS).then_some(slot)
    }

    fn set(&mut self, slot: usize, tag: u16, place: SlotPlace) {
        self.used |= 1 << slot;
        self.tags[slot] = tag;
        self.places[slot] = place;
    }

    /// Slots whose tags have this bit.
    fn with_bit(&self, bit: u16) -> u16 {
        self.tags.iter().enumerate().fold(0, |slots, (slot, tag)| slots | u16::from(tag & bit != 0) << slot)
    }

    /// Tags and places of the slots in use.
    fn slots(&self) -> impl Iterator<Item = (u16, SlotPlace)> {
        ones(self.used).map(|slot| (self.tags[slot], self.places[slot]))
    }
}

/// The numbers of the bits that are set.
fn ones(bits: u16) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)))
        .take_while(|&bits| bits != 0)
        .map(|bits| bits.trailing_zeros() as usize)
}

#[derive(Debug, Default)]
struct Segment {
    lines: Vec<Line>,
    count: usize,
    /// How many upper bits of their tags all names of the segment share, and which.
    depth: u32,
    prefix: usize,
}

/// Sequence hash → place, for the names of one domain.
#[derive(Debug)]
pub(super) struct Directory {
    segments: Vec<Segment>,
    /// Segment by the upper `depth` bits of the tag.
    index: Vec<u32>,
    depth: u32,
}

/// A name's hash: tag, and line in its segment.
#[derive(Debug, Clone, Copy)]
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

    #[inline]
    fn upper(self, bits: u32) -> usize {
        upper(self.tag(), bits)
    }
}

/// Whether a tag belongs to the upper half of a segment that is split to this depth.
fn is_upper(tag: u16, depth: u32) -> bool {
    upper(tag, depth) & 1 == 1
}

/// The first bits of a tag.
#[inline]
fn upper(tag: u16, bits: u32) -> usize {
    (u32::from(tag) >> (TAG_BITS - bits)) as usize
}

impl Default for Directory {
    fn default() -> Self {
        let segment = Segment { lines: vec![Line::EMPTY; SEGMENT_LINES_MIN], count: 0, depth: 0, prefix: 0 };
        Self { segments: vec![segment], index: vec![0], depth: 0 }
    }
}

impl Directory {
    /// Where the block with this name is.
    #[inline]
    pub(super) fn find(&self, names: &Names, name: SequenceHash) -> Option<(Place, LineId)> {
        let hash = Hash::of(name);
        let segment = &self.segments[self.index[hash.upper(self.depth)] as usize];
        segment.find(names, name, hash)
    }

    /// Calls `each` with every item and the hash of its name, in order, until it wants no more. The
    /// directory's lines are on their way from memory by then: they were asked for some items before.
    #[inline]
    pub(super) fn for_each_ahead<T>(
        &mut self,
        items: &[T],
        name: impl Fn(&T) -> SequenceHash,
        mut each: impl FnMut(&mut Self, &T, Hash) -> ControlFlow<()>,
    ) {
        let mut hashes = [Hash(0); PREFETCHED_AHEAD];
        for at in 0..items.len() + PREFETCHED_AHEAD {
            let hash = &mut hashes[at % PREFETCHED_AHEAD];
            if let Some(item) = at.checked_sub(PREFETCHED_AHEAD).map(|at| &items[at])
                && each(self, item, *hash).is_break()
            {
                return;
            }
            if let Some(item) = items.get(at) {
                *hash = Hash::of(name(item));
                let segment = &self.segments[self.index[hash.upper(self.depth)] as usize];
                prefetch(&segment.lines[hash.home(segment.lines.len())]);
            }
        }
    }

    /// Takes in a name that is not known yet; `place` puts it into a line of names, once there is room
    /// for it here, and returns that line. Returns nothing when the name is known.
    ///
    /// The order matters: when a segment grows, the lines say which names are in it.
    #[inline]
    pub(super) fn insert_new(
        &mut self,
        names: &mut Names,
        (name, hash): (SequenceHash, Hash),
        place: impl FnOnce(&mut Names) -> LineId,
    ) -> Option<LineId> {
        let mut at = self.index[hash.upper(self.depth)] as usize;
        if self.segments[at].find(names, name, hash).is_some() {
            return None;
        }
        if self.segments[at].is_full() {
            at = self.make_room(names, hash);
        }
        let line = place(names);
        self.segments[at].put(hash, line);
        Some(line)
    }

    /// The segment for one more name with this hash.
    #[cold]
    fn make_room(&mut self, names: &Names, hash: Hash) -> usize {
        loop {
            let at = self.index[hash.upper(self.depth)] as usize;
            let segment = &mut self.segments[at];
            if !segment.is_full() {
                return at;
            }
            if segment.lines.len() < SPLIT_LINES || segment.depth == DEPTH_MAX {
                let lines = segment.lines.len() * 2;
                let entries = segment.entries(names);
                segment.rebuild(lines, entries.iter().copied());
            } else {
                self.split(names, at);
            }
        }
    }

    /// Forgets a name that stands in `line`.
    pub(super) fn remove(&mut self, hash: Hash, line: LineId) {
        self.segments[self.index[hash.upper(self.depth)] as usize].remove(hash, line);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.iter().all(|segment| segment.count == 0)
    }

    pub(super) fn bytes(&self) -> usize {
        let lines: usize = self.segments.iter().map(|segment| segment.lines.capacity()).sum();
        lines * size_of::<Line>() + self.index.capacity() * size_of::<u32>()
    }

    fn split(&mut self, names: &Names, at: usize) {
        let new = u32::try_from(self.segments.len()).expect("fewer than 2^32 segments");
        let upper = self.segments[at].split(names);
        let (depth, prefix) = (upper.depth, upper.prefix);
        self.segments.push(upper);
        if depth > self.depth {
            self.index = self.index.iter().flat_map(|&segment| [segment, segment]).collect();
            self.depth += 1;
        }
        // All places of the index that start with the bits of the upper half.
        let width = 1_usize << (self.depth - depth);
        self.index[prefix * width..(prefix + 1) * width].fill(new);
    }
}

impl Segment {
    fn is_full(&self) -> bool {
        (self.count + 1) * 5 > self.lines.len() * SLOTS * 4
    }

    #[inline]
    fn find(&self, names: &Names, name: SequenceHash, hash: Hash) -> Option<(Place, LineId)> {
        let tag = hash.tag();
        let mut at = hash.home(self.lines.len());
        for _ in 0..self.lines.len() {
            let line = &self.lines[at];
            let mut candidates = line.with_tag(tag);
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

    fn put(&mut self, hash: Hash, place: LineId) {
        let home = hash.home(self.lines.len());
        let mut at = home;
        loop {
            let line = &mut self.lines[at];
            if let Some(slot) = line.free_slot() {
                line.set(slot, hash.tag(), SlotPlace::new(place, at != home));
                break;
            }
            line.overflow += 1;
            at = (at + 1) & (self.lines.len() - 1);
        }
        self.count += 1;
    }

    fn remove(&mut self, hash: Hash, place: LineId) {
        let tag = hash.tag();
        let mask = self.lines.len() - 1;
        let home = hash.home(self.lines.len());
        let mut at = home;
        // Two names of one line may share tag and home: their slots are alike, either will do.
        let slot = loop {
            let line = &self.lines[at];
            let mut candidates = line.with_tag(tag);
            while candidates != 0 && line.places[candidates.trailing_zeros() as usize].line() != place {
                candidates &= candidates - 1;
            }
            if candidates != 0 {
                break candidates.trailing_zeros() as usize;
            }
            assert_ne!(line.overflow, 0, "the name is in the directory");
            at = (at + 1) & mask;
        };
        self.lines[at].used &= !(1 << slot);
        let mut passed = home;
        while passed != at {
            self.lines[passed].overflow -= 1;
            passed = (passed + 1) & mask;
        }
        self.count -= 1;
    }

    /// Takes the names out whose tags go on with a one, into a segment of their own.
    fn split(&mut self, names: &Names) -> Self {
        let depth = self.depth + 1;
        let mut upper =
            Self { lines: vec![Line::EMPTY; self.lines.len()], count: 0, depth, prefix: self.prefix << 1 | 1 };
        let displaced = self.take_displaced(names);
        for (from, to) in self.lines.iter_mut().zip(&mut upper.lines) {
            let going = from.used & from.with_bit(1 << (TAG_BITS - depth));
            for slot in ones(going) {
                to.set(to.used.trailing_ones() as usize, from.tags[slot], from.places[slot]);
            }
            from.used &= !going;
            upper.count += going.count_ones() as usize;
        }
        self.count -= upper.count;
        (self.depth, self.prefix) = (depth, self.prefix << 1);
        for (hash, place) in displaced {
            let half = if is_upper(hash.tag(), depth) { &mut upper } else { &mut *self };
            half.put(hash, place);
        }
        upper
    }

    /// Takes out all names that do not stand where they belong: only the names themselves tell where
    /// that is. Without them nothing has overflowed.
    fn take_displaced(&mut self, names: &Names) -> Vec<(Hash, LineId)> {
        let displaced = self.lines.iter().flat_map(Line::slots);
        let displaced = displaced.filter(|(_, place)| place.is_displaced()).map(|(tag, place)| (tag, place.line()));
        let displaced = displaced_names(names, displaced.collect(), &self.lines);
        for line in &mut self.lines {
            for slot in ones(line.used) {
                if line.places[slot].is_displaced() {
                    line.used &= !(1 << slot);
                }
            }
            line.overflow = 0;
        }
        self.count -= displaced.len();
        displaced
    }

    /// Every name of the segment, by its hash, and its line.
    fn entries(&self, names: &Names) -> Vec<(Hash, LineId)> {
        let mut entries = Vec::with_capacity(self.count);
        let mut ambiguous = Vec::new();
        for (tag, place) in self.lines.iter().flat_map(Line::slots) {
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

    fn rebuild(&mut self, lines: usize, entries: impl Iterator<Item = (Hash, LineId)>) {
        self.lines = vec![Line::EMPTY; lines];
        self.count = 0;
        for (hash, line) in entries {
            self.put(hash, line);
        }
    }
}

/// Hashes of the names in a line that have a tag.
fn names_with_tag(names: &Names, tag: u16, place: LineId) -> impl Iterator<Item = Hash> {
    let hashes = names.line(place).iter().map(|&name| Hash::of(SequenceHash(name)));
    hashes.filter(move |hash| hash.tag() == tag)
}

/// The names that displaced slots, given by tag and place, stand for.
fn displaced_names(names: &Names, mut slots: Vec<(u16, LineId)>, old: &[Line]) -> Vec<(Hash, LineId)> {
    slots.sort_unstable();
    let mut found = Vec::with_capacity(slots.len());
    for alike in slots.chunk_by(|a, b| a == b) {
        let (tag, place) = alike[0];
        let candidates: Vec<usize> = names_with_tag(names, tag, place).map(|hash| hash.home(old.len())).collect();
        let hashes = names_with_tag(names, tag, place).enumerate();
        // Names of the same line and tag that are not displaced stand where they belong.
        let is_displaced = |at: usize, home: usize| {
            let at_home = |&slot: &(u16, SlotPlace)| slot == (tag, SlotPlace::new(place, false));
            let before = candidates[..at].iter().filter(|&&other| other == home).count();
            before >= old[home].slots().filter(at_home).count()
        };
        let displaced = hashes.filter(|&(at, hash)| is_displaced(at, hash.home(old.len())));
        found.extend(displaced.map(|(_, hash)| (hash, place)).take(alike.len()));
    }
    found
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use super::super::names::Column;
    use super::*;
    use crate::designs::run::published::layout::RunId;

    fn last(names: &Names, column: &Column) -> Option<(SequenceHash, LineId)> {
        names.last_names(column).next()
    }

    /// Columns of a few names each, which come and go at random; the directory knows just those.
    #[test]
    fn knows_the_names_that_it_was_told() {
        let (mut directory, mut names) = (Directory::default(), Names::default());
        let mut columns = vec![Column::default(); 3_000];
        let mut known: HashMap<u64, Place> = HashMap::new();
        let mut random = 1_u64;
        for step in 0..120_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let run = (random >> 33) as usize % columns.len();
            let column = &mut columns[run];
            // More come than go, and every fourth name is one of few.
            if random >> 20 & 3 > 0 && column.named < 40 {
                let name = SequenceHash(if step.is_multiple_of(4) { step % 1_000 } else { step });
                let line = directory.insert_new(&mut names, (name, Hash::of(name)), |names| {
                    names.push(RunId(run as u32), column, name)
                });
                assert_eq!(line.is_none(), known.contains_key(&name.0));
                if line.is_some() {
                    known.insert(name.0, Place { run: RunId(run as u32), offset: column.named - 1 });
                }
            } else if let Some((name, line)) = last(&names, column) {
                directory.remove(Hash::of(name), line);
                names.pop(column);
                known.remove(&name.0);
            }
        }
        assert!(known.len() > 20_000, "it was split: {}", known.len());
        for name in 0..120_000 {
            let found = directory.find(&names, SequenceHash(name)).map(|(place, _)| place);
            assert_eq!(found, known.get(&name).copied(), "{name}");
        }
        for column in &mut columns {
            while let Some((name, line)) = last(&names, column) {
                directory.remove(Hash::of(name), line);
                names.pop(column);
            }
        }
        assert!(directory.is_empty());
    }
}
