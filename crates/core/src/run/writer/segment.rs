//! One part of a directory: lines of slots that say in which line of names a name stands.
//!
//! ```text
//!  line of 64 bytes: ten tags (16 bits) | used slots (16) | names that overflowed: four counters (4) | ten places (32)
//!  place: displacement (3) | line of names (29)
//! ```
//!
//! A slot says only in which line of names a name stands; the names of that line tell whether
//! it does, and where. A name for which there is no slot in the line where it belongs stands in one of the
//! next, and its place says how many lines further. So a segment is split without a look at any name: the tag
//! says into which half a slot goes, its line and its displacement where in it.

use std::collections::BTreeSet;
use std::iter;

use bytemuck::{Pod, Zeroable};

use super::names::{LineId, Names};
use crate::SequenceHash;
use crate::keyed::HashKey;
use crate::run::effort::{self, Effort};
use crate::run::published::layout::Place;
use crate::run::published::prefetch::prefetch;

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
    pub(super) fn of(key: HashKey, name: SequenceHash) -> Self {
        Self(key.hash(name.0, 0))
    }

    #[inline]
    fn tag(self) -> u16 {
        self.0 as u16
    }

    #[inline]
    fn home(self, lines: usize) -> usize {
        (self.0 >> TAG_BITS) as usize & (lines - 1)
    }

    /// Where the name belongs in a segment of so many lines.
    #[inline]
    fn spot(self, lines: usize) -> Spot {
        Spot { home: self.home(lines) as u32, tag: self.tag() }
    }

    /// Its line among few, and the tag's kind: where it belongs in any small segment.
    #[cfg(all(test, not(loom)))]
    pub(super) fn spot_of_test(self) -> (usize, u16) {
        (self.home(256), self.tag() & 3)
    }

    /// The first bits of the tag.
    #[inline]
    pub(super) fn upper(self, bits: u32) -> usize {
        (u32::from(self.tag()) >> (TAG_BITS - bits)) as usize
    }
}

/// Where a name belongs in a segment of a certain size, and the tag that it has there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spot {
    home: u32,
    tag: u16,
}

/// What a slot holds: a line of names, and how far from the line where it belongs the slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
struct SlotPlace(u32);

impl SlotPlace {
    /// So many lines or more.
    const FAR: usize = 7;

    fn new(line: LineId, displacement: usize) -> Self {
        Self(line.0 | (displacement.min(Self::FAR) as u32) << LineId::BITS)
    }

    #[inline]
    fn line(self) -> LineId {
        LineId(self.0 & ((1 << LineId::BITS) - 1))
    }

    fn displacement(self) -> usize {
        (self.0 >> LineId::BITS) as usize
    }
}

/// How many names belong in a line or before it and stand behind it: a counter for each of four kinds of tags, so that
/// most names need not be looked for further where some have overflowed. A counter that is at its end stays there until
/// its segment grows: then it only says that there may be some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
struct Overflow(u16);

impl Overflow {
    const NONE: Self = Self(0);
    const COUNT_MAX: u16 = 15;

    fn shift(tag: u16) -> u32 {
        u32::from(tag & 3) * 4
    }

    #[inline]
    fn count(self, tag: u16) -> u16 {
        self.0 >> Self::shift(tag) & Self::COUNT_MAX
    }

    fn add(&mut self, tag: u16) {
        if self.count(tag) < Self::COUNT_MAX {
            self.0 += 1 << Self::shift(tag);
        }
    }

    /// A name with this tag, which was added, is gone.
    fn subtract(&mut self, tag: u16) {
        let count = self.count(tag);
        assert_ne!(count, 0, "the name is in the directory");
        if count < Self::COUNT_MAX {
            self.0 -= 1 << Self::shift(tag);
        }
    }
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line {
    tags: [u16; SLOTS],
    /// Slots in use, as bits.
    used: u16,
    overflow: Overflow,
    places: [SlotPlace; SLOTS],
}

impl Line {
    /// Slots in use with this tag, as bits.
    #[inline]
    fn with_tag(&self, tag: u16) -> u32 {
        // Ten tags, and six words of something else: slots that are none are not in use.
        let [first, second, ..]: &[[u16; 8]; 4] = bytemuck::cast_ref(self);
        equal_to([first, second], tag) & u32::from(self.used)
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

    /// A slot of a name with this tag that stands in that line of names. Two names may share both: then their
    /// slots are alike, and either will do.
    #[inline]
    fn slot_of(&self, tag: u16, place: LineId) -> Option<usize> {
        let mut candidates = self.with_tag(tag);
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            if self.places[slot].line() == place {
                return Some(slot);
            }
            candidates &= candidates - 1;
        }
        None
    }

    #[inline]
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

/// Which of sixteen words are this one, as bits.
#[inline]
fn equal_to(words: [&[u16; 8]; 2], word: u16) -> u32 {
    // The compiler makes vector code of the comparison by itself, but goes a long way from there to the bits.
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::core_arch::x86::Sse2::try_new() {
        let wanted = simd._mm_set1_epi16(word as i16);
        let [first, second] = words.map(|eight| simd._mm_cmpeq_epi16(bytemuck::cast(*eight), wanted));
        return simd._mm_movemask_epi8(simd._mm_packs_epi16(first, second)) as u32;
    }
    words.into_iter().flatten().enumerate().fold(0, |equal, (at, &other)| equal | u32::from(other == word) << at)
}

/// The numbers of the bits that are set.
fn ones(bits: u16) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)))
        .take_while(|&bits| bits != 0)
        .map(|bits| bits.trailing_zeros() as usize)
}

/// A name taken out of its slot: where it belongs, and its line of names.
type Displaced = (Spot, LineId);

/// A part of a directory.
#[derive(Debug)]
pub(super) struct Segment {
    lines: Box<[Line]>,
    /// Names more with which it counts as full.
    room: u32,
    /// How many upper bits of their tags all names of the segment share, and which.
    depth: u32,
    prefix: u32,
}

impl Default for Segment {
    fn default() -> Self {
        Self::new(SEGMENT_LINES_MIN, (0, 0))
    }
}

impl Segment {
    /// An empty one of so many lines, for names whose tags start with these bits.
    fn new(lines: usize, (depth, prefix): (u32, u32)) -> Self {
        Self { lines: bytemuck::zeroed_slice_box(lines), room: names_max(lines), depth, prefix }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn prefix(&self) -> usize {
        self.prefix as usize
    }

    fn count(&self) -> u32 {
        names_max(self.lines.len()) - self.room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Whether so many names more leave it fast.
    #[inline]
    pub(super) fn has_room_for(&self, count: usize) -> bool {
        self.room as usize >= count
    }

    /// Whether half of it would be much too large as well.
    pub(super) fn is_sparse(&self) -> bool {
        self.lines.len() >= SHRUNK_LINES_MIN && self.count() as usize * 5 < self.lines.len() * SLOTS
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Where the name belongs until the segment grows.
    #[inline]
    pub(super) fn spot(&self, hash: Hash) -> Spot {
        hash.spot(self.lines.len())
    }

    #[inline]
    fn line(&self, spot: Spot) -> &Line {
        &self.lines[spot.home as usize]
    }

    #[inline]
    pub(super) fn prefetch(&self, spot: Spot) {
        prefetch(self.line(spot));
    }

    /// Lines of names in which a name may stand, as far as the line where it belongs says.
    pub(super) fn candidates(&self, spot: Spot) -> impl Iterator<Item = LineId> {
        let line = self.line(spot);
        ones(line.with_tag(spot.tag) as u16).map(|slot| line.places[slot].line())
    }

    pub(super) fn find(&self, names: &Names, name: SequenceHash, spot: Spot) -> Option<(Place, LineId)> {
        let mut at = spot.home as usize;
        for _ in 0..self.lines.len() {
            effort::spend(Effort::DirectoryLine, 1);
            let line = &self.lines[at];
            let mut candidates = line.with_tag(spot.tag);
            while candidates != 0 {
                let candidate = line.places[candidates.trailing_zeros() as usize].line();
                if let Some(place) = names.find_in(candidate, name) {
                    return Some((place, candidate));
                }
                candidates &= candidates - 1;
            }
            if line.overflow.count(spot.tag) == 0 {
                return None;
            }
            at = (at + 1) & (self.lines.len() - 1);
        }
        None
    }

    /// Takes in a name for which there is room, if the line where it belongs tells by itself that it is new and has a
    /// slot for it.
    #[inline]
    pub(super) fn put_new(&mut self, spot: Spot, place: LineId) -> bool {
        let line = &mut self.lines[spot.home as usize];
        let Some(slot) =
            line.free_slot().filter(|_| line.overflow.count(spot.tag) == 0 && line.with_tag(spot.tag) == 0)
        else {
            return false;
        };
        line.set(slot, spot.tag, SlotPlace::new(place, 0));
        self.room -= 1;
        true
    }

    /// Takes in a name for which there is room.
    pub(super) fn put(&mut self, spot: Spot, place: LineId) {
        self.room -= 1;
        let mut displacement = 0;
        loop {
            let at = (spot.home as usize + displacement) & (self.lines.len() - 1);
            let line = &mut self.lines[at];
            if let Some(slot) = line.free_slot() {
                line.set(slot, spot.tag, SlotPlace::new(place, displacement));
                return;
            }
            line.overflow.add(spot.tag);
            displacement += 1;
        }
    }

    /// Forgets a name that is here.
    #[inline]
    pub(super) fn remove(&mut self, spot: Spot, place: LineId) {
        self.room += 1;
        let home = spot.home as usize;
        let line = &mut self.lines[home];
        match line.slot_of(spot.tag, place) {
            Some(slot) => line.clear(1 << slot),
            None => self.remove_further(spot, place),
        }
    }

    /// Forgets a name that is in one of the lines behind the one where it belongs.
    fn remove_further(&mut self, spot: Spot, place: LineId) {
        let mask = self.lines.len() - 1;
        let mut at = spot.home as usize;
        loop {
            let line = &mut self.lines[at];
            if let Some(slot) = line.slot_of(spot.tag, place) {
                line.clear(1 << slot);
                return;
            }
            line.overflow.subtract(spot.tag);
            at = (at + 1) & mask;
        }
    }

    pub(super) fn can_be_split(&self) -> bool {
        self.lines.len() >= SPLIT_LINES && self.depth < DEPTH_MAX
    }

    /// Takes the names out whose tags go on with a one, into a segment of their own.
    pub(super) fn split(&mut self, names: &Names) -> Self {
        let displaced = self.take_displaced(names);
        let depth = self.depth + 1;
        let bit = 1 << (TAG_BITS - depth);
        let mut upper = Self::new(self.lines.len(), (depth, self.prefix << 1 | 1));
        (self.depth, self.prefix) = (depth, self.prefix << 1);
        for (from, to) in self.lines.iter_mut().zip(&mut upper.lines) {
            let going = from.with_bit(bit);
            for (new, slot) in ones(going).enumerate() {
                to.set(new, from.tags[slot], from.places[slot]);
            }
            from.clear(going);
            self.room += going.count_ones();
            upper.room -= going.count_ones();
        }
        for (spot, place) in displaced {
            let half = if spot.tag & bit != 0 { &mut upper } else { &mut *self };
            half.put(spot, place);
        }
        upper
    }

    /// Takes out all names that do not stand where they belong. Without them nothing has overflowed.
    fn take_displaced(&mut self, names: &Names) -> Vec<Displaced> {
        let mask = self.lines.len() - 1;
        let (mut displaced, mut far) = (Vec::new(), Vec::new());
        for (at, line) in self.lines.iter_mut().enumerate() {
            line.overflow = Overflow::NONE;
            let going = line.displaced();
            for slot in ones(going) {
                let (tag, place) = (line.tags[slot], line.places[slot]);
                match place.displacement() {
                    SlotPlace::FAR => far.push((tag, place.line())),
                    displacement => {
                        let home = (at.wrapping_sub(displacement) & mask) as u32;
                        displaced.push((Spot { home, tag }, place.line()));
                    }
                }
            }
            line.clear(going);
        }
        if !far.is_empty() {
            let homes = self.homes_of_far(names, far, &displaced);
            displaced.extend(homes);
        }
        self.room += displaced.len() as u32;
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
            let mut spots: Vec<Spot> = hashes.map(|hash| self.spot(hash)).collect();
            let near = displaced.iter().filter(|&&(spot, line)| (spot.tag, line) == (tag, place));
            let mut accounted: Vec<Spot> = near.map(|&(spot, _)| spot).collect();
            for home in spots.iter().map(|spot| spot.home).collect::<BTreeSet<_>>() {
                let slots = self.lines[home as usize].slots();
                let at_home = slots.filter(|&slot| slot == (tag, SlotPlace::new(place, 0)));
                accounted.extend(at_home.map(|_| Spot { home, tag }));
            }
            for spot in accounted {
                let at = spots.iter().position(|&other| other == spot);
                spots.swap_remove(at.expect("every slot stands for a name"));
            }
            found.extend(spots.into_iter().map(|spot| (spot, place)));
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
        *self = Self::new(lines, (self.depth, self.prefix));
        for (hash, line) in entries {
            self.put(self.spot(hash), line);
        }
    }

    /// Every name of the segment, by its hash, and its line.
    fn entries(&self, names: &Names) -> Vec<(Hash, LineId)> {
        let mut entries = Vec::with_capacity(self.count() as usize);
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

/// Names with which a segment of so many lines counts as full.
fn names_max(lines: usize) -> u32 {
    (lines * LINE_NAMES_MAX) as u32
}

/// Hashes of the names in a line that have a tag.
fn names_with_tag(names: &Names, tag: u16, place: LineId) -> impl Iterator<Item = Hash> {
    let hashes = names.line(place).iter().map(|&name| Hash::of(names.key(), SequenceHash(name)));
    hashes.filter(move |hash| hash.tag() == tag)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::names::Column;
    use super::*;
    use crate::run::published::layout::RunId;

    const KEY: HashKey = HashKey::FIXED;

    /// Names that crowd into a few lines, far from where they belong, some of them alike in every way that
    /// slots can tell: split or doubled, the segment knows each of them.
    #[test]
    fn crowded_names_are_found_after_growth() {
        let of_home = |home: usize| move |name: &u64| Hash::of(KEY, SequenceHash(*name)).home(SPLIT_LINES) == home;
        let mut crowd: Vec<u64> = (0..1 << 20).filter(of_home(7)).take(400).collect();
        crowd.extend((0..1 << 20).filter(of_home(SPLIT_LINES - 1)).take(90));
        // Equal tags beside each other share lines of names.
        crowd.sort_unstable_by_key(|&name| Hash::of(KEY, SequenceHash(name)).tag());
        let alike =
            |pair: &[u64]| Hash::of(KEY, SequenceHash(pair[0])).tag() == Hash::of(KEY, SequenceHash(pair[1])).tag();
        assert!(crowd.windows(2).any(alike), "some share tag and home");

        for split in [false, true] {
            let (mut names, mut column) = (Names::new(KEY), Column::default());
            let mut lower = Segment::new(SPLIT_LINES, (0, 0));
            let mut placed = Vec::new();
            for &name in &crowd {
                let name = SequenceHash(name);
                let (line, _) = names.open(RunId(1), &mut column);
                names.write(line, std::iter::once(name));
                names.validate(&mut column, 1);
                lower.put(lower.spot(Hash::of(KEY, name)), line);
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
            let half = |name: SequenceHash, depth: u32| split && Hash::of(KEY, name).upper(depth) & 1 == 1;
            for &(name, line) in &placed {
                let segment = if half(name, 1) { &upper } else { &lower };
                let found = segment.find(&names, name, segment.spot(Hash::of(KEY, name)));
                assert_eq!(found.map(|(_, found)| found), Some(line));
            }
            for &(name, line) in &placed {
                let segment = if half(name, 1) { &mut upper } else { &mut lower };
                segment.remove(segment.spot(Hash::of(KEY, name)), line);
            }
            assert!(lower.is_empty() && upper.is_empty());
            let counters = |line: &Line| [0, 1, 2, 3].map(|kind| line.overflow.count(kind));
            let is_left = |count: &u16| *count > 0 && *count < Overflow::COUNT_MAX;
            let is_clean = |line: &Line| line.used == 0 && !counters(line).iter().any(is_left);
            assert!(lower.lines.iter().all(is_clean), "nothing is left behind");
        }
    }
}
