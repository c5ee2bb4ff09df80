//! From an engine's names to blocks: one hash table for each hash domain.
//!
//! ```text
//!  line of 64 bytes: twelve tags (8 bits) | counter of names that overflowed (32) | twelve lines of names (32)
//! ```
//!
//! A slot says only in which line of names a name stands; the eight names of that line tell whether
//! it does, and where. The table is cut into segments by the upper bits of the hash. A segment that
//! is full is doubled while it is small and split after that, so that growing never costs more than
//! one segment; the names themselves give back the bits of their hashes that a slot does not keep.

use super::names::{LineId, Names};
use crate::SequenceHash;
use crate::designs::run::published::layout::Place;

const SLOTS: usize = 12;
/// Lines of a full-grown segment.
const SEGMENT_LINES_MAX: usize = 128;
const SEGMENT_LINES_MIN: usize = 2;

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    /// Zero where the slot is free.
    tags: [u8; SLOTS],
    overflow: u32,
    places: [LineId; SLOTS],
}

impl Line {
    const EMPTY: Self = Self { tags: [0; SLOTS], overflow: 0, places: [LineId::NONE; SLOTS] };

    /// Slots with this tag, as bits.
    #[inline]
    fn with_tag(&self, tag: u8) -> u32 {
        let mut equal = 0;
        for (at, &other) in self.tags.iter().enumerate() {
            equal |= u32::from(other == tag) << at;
        }
        equal
    }
}

#[derive(Debug)]
struct Segment {
    lines: Vec<Line>,
    count: usize,
    /// How many upper bits of the hash all names of the segment share, and which.
    depth: u32,
    prefix: usize,
}

/// Sequence hash → place, for the names of one domain.
#[derive(Debug)]
pub(super) struct Directory {
    segments: Vec<Segment>,
    /// Segment by the upper `depth` bits of the hash.
    index: Vec<u32>,
    depth: u32,
}

/// A name's hash: the upper bits choose the segment, the lower ones tag and line.
#[derive(Debug, Clone, Copy)]
struct Hash(u64);

impl Hash {
    #[inline]
    fn of(name: SequenceHash) -> Self {
        let mixed = u128::from(name.0 ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        Self((mixed >> 64) as u64 ^ mixed as u64)
    }

    #[inline]
    fn tag(self) -> u8 {
        (self.0 as u8).max(1)
    }

    #[inline]
    fn home(self, lines: usize) -> usize {
        (self.0 >> 8) as usize & (lines - 1)
    }

    #[inline]
    fn upper(self, bits: u32) -> usize {
        self.0.checked_shr(u64::BITS - bits).unwrap_or(0) as usize
    }
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

    /// Starts loading what a search for this name will look at first. The sum is to be used, or the
    /// loads are optimised away.
    #[inline]
    pub(super) fn touch(&self, name: SequenceHash) -> u32 {
        let hash = Hash::of(name);
        let segment = &self.segments[self.index[hash.upper(self.depth)] as usize];
        segment.lines[hash.home(segment.lines.len())].overflow
    }

    /// Makes room for one more name with this one's hash. Must come before the name enters a line,
    /// because names are counted by what lines hold.
    pub(super) fn reserve(&mut self, names: &Names, name: SequenceHash) {
        let hash = Hash::of(name);
        loop {
            let at = self.index[hash.upper(self.depth)] as usize;
            let segment = &mut self.segments[at];
            if (segment.count + 1) * 6 <= segment.lines.len() * SLOTS * 5 {
                return;
            }
            if segment.lines.len() < SEGMENT_LINES_MAX {
                let lines = segment.lines.len() * 2;
                let entries = segment.entries(names);
                segment.rebuild(lines, entries.iter().copied());
            } else {
                self.split(names, at);
            }
        }
    }

    /// Takes in a name that stands in `line` now and is not known; after [`Directory::reserve`].
    pub(super) fn insert(&mut self, name: SequenceHash, line: LineId) {
        let hash = Hash::of(name);
        self.segments[self.index[hash.upper(self.depth)] as usize].put(hash, line);
    }

    /// Forgets a name that stands in `line`.
    pub(super) fn remove(&mut self, name: SequenceHash, line: LineId) {
        let hash = Hash::of(name);
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
        let entries = self.segments[at].entries(names);
        let (depth, prefix) = (self.segments[at].depth + 1, self.segments[at].prefix << 1);
        if depth > self.depth {
            self.index = self.index.iter().flat_map(|&segment| [segment, segment]).collect();
            self.depth += 1;
        }
        let new = u32::try_from(self.segments.len()).expect("fewer than 2^32 segments");
        let is_upper = |hash: Hash| hash.upper(depth) & 1 == 1;
        let mut upper = Segment { lines: Vec::new(), count: 0, depth, prefix: prefix | 1 };
        upper.rebuild(SEGMENT_LINES_MAX, entries.iter().copied().filter(|&(hash, _)| is_upper(hash)));
        let lower = &mut self.segments[at];
        (lower.depth, lower.prefix) = (depth, prefix);
        lower.rebuild(SEGMENT_LINES_MAX, entries.iter().copied().filter(|&(hash, _)| !is_upper(hash)));
        self.segments.push(upper);
        // All places of the index that start with the bits of the upper half.
        let width = 1_usize << (self.depth - depth);
        let start = (prefix | 1) * width;
        self.index[start..start + width].fill(new);
    }
}

impl Segment {
    #[inline]
    fn find(&self, names: &Names, name: SequenceHash, hash: Hash) -> Option<(Place, LineId)> {
        let tag = hash.tag();
        let mut at = hash.home(self.lines.len());
        for _ in 0..self.lines.len() {
            let line = &self.lines[at];
            let mut candidates = line.with_tag(tag);
            while candidates != 0 {
                let candidate = line.places[candidates.trailing_zeros() as usize];
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
        let mut at = hash.home(self.lines.len());
        loop {
            let line = &mut self.lines[at];
            let free = line.with_tag(0);
            if free != 0 {
                let slot = free.trailing_zeros() as usize;
                line.tags[slot] = hash.tag();
                line.places[slot] = place;
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
            while candidates != 0 && line.places[candidates.trailing_zeros() as usize] != place {
                candidates &= candidates - 1;
            }
            if candidates != 0 {
                break candidates.trailing_zeros() as usize;
            }
            assert_ne!(line.overflow, 0, "the name is in the directory");
            at = (at + 1) & mask;
        };
        self.lines[at].tags[slot] = 0;
        let mut passed = home;
        while passed != at {
            self.lines[passed].overflow -= 1;
            passed = (passed + 1) & mask;
        }
        self.count -= 1;
    }

    /// Every name of the segment, by its hash, and its line.
    fn entries(&self, names: &Names) -> Vec<(Hash, LineId)> {
        let mut lines: Vec<LineId> = self
            .lines
            .iter()
            .flat_map(|line| {
                let used = line.tags.iter().zip(line.places).filter(|&(&tag, _)| tag != 0);
                used.map(|(_, place)| place).collect::<Vec<_>>()
            })
            .collect();
        lines.sort_unstable();
        lines.dedup();
        let belongs = |hash: Hash| hash.upper(self.depth) == self.prefix;
        let all = lines
            .iter()
            .flat_map(|&line| names.line(line).iter().map(move |&name| (Hash::of(SequenceHash(name)), line)));
        all.filter(|&(hash, _)| belongs(hash)).collect()
    }

    fn rebuild(&mut self, lines: usize, entries: impl Iterator<Item = (Hash, LineId)>) {
        self.lines = vec![Line::EMPTY; lines];
        self.count = 0;
        for (hash, line) in entries {
            self.put(hash, line);
        }
    }
}
