//! One line of a directory: ten slots, each with a tag and the line of sequence hashes that it refers to.
//!
//! ```text
//!  line of 64 bytes: ten tags (16 bits) | used slots (16) | displaced hashes: four counters (4) | ten entries (32)
//!  entry: displacement in lines (3) | line of sequence hashes (29)
//! ```

use bytemuck::{Pod, Zeroable};

use super::sequence_columns::LineId;
use crate::SequenceHash;
use crate::keyed::HashKey;

pub(super) const SLOTS: usize = 10;
pub(super) const TAG_BITS: u32 = 16;

/// Keyed hash of a sequence hash: a tag, and a line in its segment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hash(u64);

impl Hash {
    #[inline]
    pub(super) fn of(key: HashKey, sequence: SequenceHash) -> Self {
        Self(key.hash(sequence.0, 0))
    }

    #[inline]
    pub(super) fn tag(self) -> u16 {
        self.0 as u16
    }

    #[inline]
    pub(super) fn home(self, lines: usize) -> usize {
        (self.0 >> TAG_BITS) as usize & (lines - 1)
    }

    /// Where a search starts in a segment of `lines` lines.
    #[inline]
    pub(super) fn probe_start(self, lines: usize) -> ProbeStart {
        ProbeStart { home: self.home(lines) as u32, tag: self.tag() }
    }

    /// Home line and kind of tag: the same in every small segment.
    #[cfg(all(test, not(loom)))]
    pub(super) fn home_of_test(self) -> (usize, u16) {
        (self.home(256), self.tag() & 3)
    }

    /// The upper bits of the tag.
    #[inline]
    pub(super) fn upper(self, bits: u32) -> usize {
        (u32::from(self.tag()) >> (TAG_BITS - bits)) as usize
    }
}

/// Home line of a sequence hash in a segment of a certain size, and its tag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProbeStart {
    pub(super) home: u32,
    pub(super) tag: u16,
}

/// Content of a slot: a line of sequence hashes, and the distance of the slot from its home line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct SlotEntry(u32);

impl SlotEntry {
    /// Displacement of this many lines or more.
    pub(super) const FAR: usize = 7;

    pub(super) fn new(line: LineId, displacement: usize) -> Self {
        Self(line.0 | (displacement.min(Self::FAR) as u32) << LineId::BITS)
    }

    #[inline]
    pub(super) fn line(self) -> LineId {
        LineId(self.0 & ((1 << LineId::BITS) - 1))
    }

    pub(super) fn displacement(self) -> usize {
        (self.0 >> LineId::BITS) as usize
    }
}

/// Counts the sequence hashes whose home is this line or an earlier one and that are in a later line: four counters by kind
/// of tag, so that most searches can stop here even if some hashes were displaced. A saturated counter stays saturated
/// until its segment grows; it then only means that there may be some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct Overflow(u16);

impl Overflow {
    pub(super) const NONE: Self = Self(0);
    pub(super) const COUNT_MAX: u16 = 15;

    pub(super) fn shift(tag: u16) -> u32 {
        u32::from(tag & 3) * 4
    }

    #[inline]
    pub(super) fn count(self, tag: u16) -> u16 {
        self.0 >> Self::shift(tag) & Self::COUNT_MAX
    }

    pub(super) fn add(&mut self, tag: u16) {
        if self.count(tag) < Self::COUNT_MAX {
            self.0 += 1 << Self::shift(tag);
        }
    }

    /// Counts the removal of a sequence hash with this tag that was added before.
    pub(super) fn subtract(&mut self, tag: u16) {
        let count = self.count(tag);
        assert_ne!(count, 0, "the sequence hash is in the directory");
        if count < Self::COUNT_MAX {
            self.0 -= 1 << Self::shift(tag);
        }
    }
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line {
    pub(super) tags: [u16; SLOTS],
    /// Slots in use, as bits.
    pub(super) used: u16,
    pub(super) overflow: Overflow,
    pub(super) entries: [SlotEntry; SLOTS],
}

impl Line {
    /// Slots in use with this tag, as bits.
    #[inline]
    pub(super) fn with_tag(&self, tag: u16) -> u32 {
        // Ten tags and six words of other fields: bits beyond the slots are never in use.
        let [first, second, ..]: &[[u16; 8]; 4] = bytemuck::cast_ref(self);
        equal_to([first, second], tag) & u32::from(self.used)
    }

    #[inline]
    pub(super) fn free_slot(&self) -> Option<usize> {
        let slot = self.used.trailing_ones() as usize;
        (slot < SLOTS).then_some(slot)
    }

    #[inline]
    pub(super) fn set(&mut self, slot: usize, tag: u16, hash_line: SlotEntry) {
        self.used |= 1 << slot;
        self.tags[slot] = tag;
        self.entries[slot] = hash_line;
    }

    /// A slot with this tag that refers to that line of sequence hashes. Two hashes may share both; then their slots
    /// are equal, and either one will do.
    #[inline]
    pub(super) fn slot_of(&self, tag: u16, hash_line: LineId) -> Option<usize> {
        let mut candidates = self.with_tag(tag);
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            if self.entries[slot].line() == hash_line {
                return Some(slot);
            }
            candidates &= candidates - 1;
        }
        None
    }

    #[inline]
    pub(super) fn clear(&mut self, slots: u16) {
        self.used &= !slots;
    }

    /// Slots in use whose tags have this bit.
    pub(super) fn with_bit(&self, bit: u16) -> u16 {
        let has_bit = |(slot, tag): (usize, &u16)| u16::from(tag & bit != 0) << slot;
        self.used & self.tags.iter().enumerate().map(has_bit).fold(0, |slots, slot| slots | slot)
    }

    /// Slots in use whose home is another line.
    pub(super) fn displaced(&self) -> u16 {
        let is_displaced = |(slot, hash_line): (usize, &SlotEntry)| u16::from(hash_line.displacement() > 0) << slot;
        self.used & self.entries.iter().enumerate().map(is_displaced).fold(0, |slots, slot| slots | slot)
    }

    /// Tags and entries of the slots in use.
    pub(super) fn slots(&self) -> impl Iterator<Item = (u16, SlotEntry)> {
        ones(self.used).map(|slot| (self.tags[slot], self.entries[slot]))
    }
}

/// Compares sixteen words with one word; equal ones as bits.
#[inline]
pub(super) fn equal_to(words: [&[u16; 8]; 2], word: u16) -> u32 {
    // The compiler vectorises the comparison, but not the conversion to bits.
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::core_arch::x86::Sse2::try_new() {
        let wanted = simd._mm_set1_epi16(word as i16);
        let [first, second] = words.map(|eight| simd._mm_cmpeq_epi16(bytemuck::cast(*eight), wanted));
        return simd._mm_movemask_epi8(simd._mm_packs_epi16(first, second)) as u32;
    }
    words.into_iter().flatten().enumerate().fold(0, |equal, (at, &other)| equal | u32::from(other == word) << at)
}

/// Numbers of the set bits.
pub(super) fn ones(bits: u16) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)))
        .take_while(|&bits| bits != 0)
        .map(|bits| bits.trailing_zeros() as usize)
}
