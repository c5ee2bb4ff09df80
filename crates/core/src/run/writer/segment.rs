//! Segment of a directory: slot lines that map sequence hashes to their column lines.
//!
//! A slot identifies only a column line; the sequence hashes in that line determine whether it contains the wanted
//! one, and where. A hash that finds no free slot in its home line is displaced to one of the next lines, and its
//! entry records the displacement. So a segment can be split without reading any sequence hash: the tag selects the
//! half, and line and displacement give the position in it. Layout of a line: [`super::directory_line`].

use std::collections::BTreeSet;
use std::iter;

use super::directory_line::{Hash, Line, Overflow, ProbeStart, SLOTS, SlotEntry, TAG_BITS, ones};
use super::sequence_columns::{LineId, SequenceColumns};
use crate::SequenceHash;
use crate::run::effort::{self, Effort};
use crate::run::published::layout::RunPosition;
use crate::run::published::prefetch::prefetch;

/// Load at which a segment is due to grow, in sequence hashes for each line. It is full with half a sequence hash more for each
/// line, so that segments which are due together can grow one after the other.
const LINE_SEQUENCES_DUE: usize = 7;
/// Lines of a segment that is split rather than doubled.
const SPLIT_LINES: usize = 1_024;
const SEGMENT_LINES_MIN: usize = 2;
/// Slot lines whose column lines are prefetched ahead when a segment is refilled.
const REFILLED_AHEAD: usize = 3;
/// Segments with fewer lines are never halved.
const SHRUNK_LINES_MIN: usize = 64;
/// Beyond this depth, the tag bits that select the segment would no longer distinguish hashes within it.
const DEPTH_MAX: u32 = 10;

/// A sequence hash taken out of its slot: its home, and its column line.
type DisplacedSlot = (ProbeStart, LineId);

/// One part of a directory.
#[derive(Debug)]
pub(super) struct Segment {
    lines: Box<[Line]>,
    /// Sequence hashes that still fit before the segment counts as full.
    room: u32,
    /// Number of upper tag bits that all hashes of the segment share, and those bits.
    pub(super) depth: u32,
    pub(super) prefix: u32,
}

impl Default for Segment {
    fn default() -> Self {
        Self::new(SEGMENT_LINES_MIN, (0, 0))
    }
}

impl Segment {
    /// Creates an empty segment of `lines` lines, for tags that start with these bits.
    fn new(lines: usize, (depth, prefix): (u32, u32)) -> Self {
        Self { lines: bytemuck::zeroed_slice_box(lines), room: sequences_max(lines), depth, prefix }
    }

    fn count(&self) -> u32 {
        sequences_max(self.lines.len()) - self.room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Whether the segment is not full with `count` more hashes.
    pub(super) fn has_room_for(&self, count: usize) -> bool {
        self.room as usize >= count
    }

    /// Whether the segment should grow before it has `count` more hashes.
    #[inline]
    pub(super) fn is_due_with(&self, count: usize) -> bool {
        (self.room as usize) < count + spare(self.lines.len())
    }

    /// Whether half the size would still be much too large.
    pub(super) fn is_sparse(&self) -> bool {
        self.lines.len() >= SHRUNK_LINES_MIN && self.count() as usize * 5 < self.lines.len() * SLOTS
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Where a search starts; valid until the segment grows.
    #[inline]
    pub(super) fn probe_start(&self, hash: Hash) -> ProbeStart {
        hash.probe_start(self.lines.len())
    }

    #[inline]
    fn line(&self, start: ProbeStart) -> &Line {
        &self.lines[start.home as usize]
    }

    #[inline]
    pub(super) fn prefetch(&self, start: ProbeStart) {
        prefetch(self.line(start));
    }

    /// Column lines that may contain a sequence hash, as far as its home line shows.
    pub(super) fn candidates(&self, start: ProbeStart) -> impl Iterator<Item = LineId> {
        let line = self.line(start);
        ones(line.with_tag(start.tag) as u16).map(|slot| line.entries[slot].line())
    }

    pub(super) fn find(
        &self,
        sequences: &SequenceColumns,
        sequence: SequenceHash,
        start: ProbeStart,
    ) -> Option<(RunPosition, LineId)> {
        let mut at = start.home as usize;
        for _ in 0..self.lines.len() {
            effort::spend(Effort::DirectoryLine, 1);
            let line = &self.lines[at];
            let mut candidates = line.with_tag(start.tag);
            while candidates != 0 {
                let candidate = line.entries[candidates.trailing_zeros() as usize].line();
                if let Some(position) = sequences.find_in(candidate, sequence) {
                    return Some((position, candidate));
                }
                candidates &= candidates - 1;
            }
            if line.overflow.count(start.tag) == 0 {
                return None;
            }
            at = (at + 1) & (self.lines.len() - 1);
        }
        None
    }

    /// Inserts a sequence hash if its home line alone proves that it is new and has a free slot. There must be room.
    #[inline]
    pub(super) fn put_new(&mut self, start: ProbeStart, hash_line: LineId) -> bool {
        let line = &mut self.lines[start.home as usize];
        let Some(slot) =
            line.free_slot().filter(|_| line.overflow.count(start.tag) == 0 && line.with_tag(start.tag) == 0)
        else {
            return false;
        };
        line.set(slot, start.tag, SlotEntry::new(hash_line, 0));
        self.room -= 1;
        true
    }

    /// Inserts a sequence hash. There must be room.
    pub(super) fn put(&mut self, start: ProbeStart, hash_line: LineId) {
        self.room -= 1;
        let mut displacement = 0;
        loop {
            let at = (start.home as usize + displacement) & (self.lines.len() - 1);
            let line = &mut self.lines[at];
            if let Some(slot) = line.free_slot() {
                line.set(slot, start.tag, SlotEntry::new(hash_line, displacement));
                return;
            }
            line.overflow.add(start.tag);
            displacement += 1;
        }
    }

    /// Removes a sequence hash that is present.
    #[inline]
    pub(super) fn remove(&mut self, start: ProbeStart, hash_line: LineId) {
        self.room += 1;
        let home = start.home as usize;
        let line = &mut self.lines[home];
        match line.slot_of(start.tag, hash_line) {
            Some(slot) => line.clear(1 << slot),
            None => self.remove_displaced(start, hash_line),
        }
    }

    /// Removes a sequence hash that was displaced from its home line.
    fn remove_displaced(&mut self, start: ProbeStart, hash_line: LineId) {
        let mask = self.lines.len() - 1;
        let mut at = start.home as usize;
        loop {
            let line = &mut self.lines[at];
            if let Some(slot) = line.slot_of(start.tag, hash_line) {
                line.clear(1 << slot);
                return;
            }
            line.overflow.subtract(start.tag);
            at = (at + 1) & mask;
        }
    }

    pub(super) fn can_be_split(&self) -> bool {
        self.lines.len() >= SPLIT_LINES && self.depth < DEPTH_MAX
    }

    /// Moves the hashes whose next tag bit is one into a new segment.
    pub(super) fn split(&mut self, sequences: &SequenceColumns) -> Self {
        let displaced = self.take_displaced(sequences);
        let depth = self.depth + 1;
        let bit = 1 << (TAG_BITS - depth);
        let mut upper = Self::new(self.lines.len(), (depth, self.prefix << 1 | 1));
        (self.depth, self.prefix) = (depth, self.prefix << 1);
        for (from, to) in self.lines.iter_mut().zip(&mut upper.lines) {
            let leaving_slots = from.with_bit(bit);
            for (new, slot) in ones(leaving_slots).enumerate() {
                to.set(new, from.tags[slot], from.entries[slot]);
            }
            from.clear(leaving_slots);
            self.room += leaving_slots.count_ones();
            upper.room -= leaving_slots.count_ones();
        }
        for (start, hash_line) in displaced {
            let half = if start.tag & bit != 0 { &mut upper } else { &mut *self };
            half.put(start, hash_line);
        }
        upper
    }

    /// Takes out all displaced hashes and resets the displacement counters.
    fn take_displaced(&mut self, sequences: &SequenceColumns) -> Vec<DisplacedSlot> {
        let mask = self.lines.len() - 1;
        let (mut displaced, mut far) = (Vec::new(), Vec::new());
        for (at, line) in self.lines.iter_mut().enumerate() {
            line.overflow = Overflow::NONE;
            let leaving_slots = line.displaced();
            for slot in ones(leaving_slots) {
                let (tag, entry) = (line.tags[slot], line.entries[slot]);
                match entry.displacement() {
                    SlotEntry::FAR => far.push((tag, entry.line())),
                    displacement => {
                        let home = (at.wrapping_sub(displacement) & mask) as u32;
                        displaced.push((ProbeStart { home, tag }, entry.line()));
                    }
                }
            }
            line.clear(leaving_slots);
        }
        if !far.is_empty() {
            let homes = self.home_slots_of_displaced(sequences, far, &displaced);
            displaced.extend(homes);
        }
        self.room += displaced.len() as u32;
        displaced
    }

    /// Finds the home lines of hashes that are displaced too far for their entries to record it; only the sequence
    /// hashes determine those. Of hashes with equal slots, the ones without another slot are meant.
    fn home_slots_of_displaced(
        &self,
        sequences: &SequenceColumns,
        mut far: Vec<(u16, LineId)>,
        displaced: &[DisplacedSlot],
    ) -> Vec<DisplacedSlot> {
        far.sort_unstable();
        let mut found = Vec::with_capacity(far.len());
        for alike in far.chunk_by(|a, b| a == b) {
            let (tag, hash_line) = alike[0];
            let hashes = sequences_with_tag(sequences, tag, hash_line);
            let mut starts: Vec<ProbeStart> = hashes.map(|hash| self.probe_start(hash)).collect();
            let near = displaced.iter().filter(|&&(start, line)| (start.tag, line) == (tag, hash_line));
            let mut accounted: Vec<ProbeStart> = near.map(|&(start, _)| start).collect();
            for home in starts.iter().map(|start| start.home).collect::<BTreeSet<_>>() {
                let slots = self.lines[home as usize].slots();
                let at_home = slots.filter(|&slot| slot == (tag, SlotEntry::new(hash_line, 0)));
                accounted.extend(at_home.map(|_| ProbeStart { home, tag }));
            }
            for start in accounted {
                let at = starts.iter().position(|&other| other == start);
                starts.swap_remove(at.expect("every slot refers to a sequence hash"));
            }
            found.extend(starts.into_iter().map(|start| (start, hash_line)));
        }
        found
    }

    /// Doubles the number of lines. Only the sequence hashes determine to which of two lines each belongs.
    pub(super) fn double(&mut self, sequences: &SequenceColumns) {
        self.refill(sequences, self.lines.len() * 2);
    }

    /// Halves the number of lines.
    pub(super) fn halve(&mut self, sequences: &SequenceColumns) {
        self.refill(sequences, self.lines.len() / 2);
    }

    fn refill(&mut self, sequences: &SequenceColumns, lines: usize) {
        let entries = self.entries(sequences);
        *self = Self::new(lines, (self.depth, self.prefix));
        for (hash, line) in entries {
            self.put(self.probe_start(hash), line);
        }
    }

    /// Every sequence hash of the segment, hashed, with its column line.
    fn entries(&self, sequences: &SequenceColumns) -> Vec<(Hash, LineId)> {
        let mut entries = Vec::with_capacity(self.count() as usize);
        let mut ambiguous = Vec::new();
        // Column lines are prefetched while those of earlier slot lines are read.
        let ahead = self.lines.iter().skip(REFILLED_AHEAD).map(Some).chain(iter::repeat(None));
        let slots = self.lines.iter().zip(ahead).flat_map(|(line, ahead)| {
            ahead.into_iter().flat_map(Line::slots).for_each(|(_, hash_line)| sequences.prefetch(hash_line.line()));
            line.slots()
        });
        for (tag, hash_line) in slots {
            let mut found = sequences_with_tag(sequences, tag, hash_line.line());
            match (found.next(), found.next()) {
                (Some(hash), None) => entries.push((hash, hash_line.line())),
                _ => ambiguous.push((hash_line.line(), tag)),
            }
        }
        // Several hashes of one column line with the same tag have equal slots: each hash is listed once.
        ambiguous.sort_unstable();
        ambiguous.dedup();
        for (hash_line, tag) in ambiguous {
            entries.extend(sequences_with_tag(sequences, tag, hash_line).map(|hash| (hash, hash_line)));
        }
        entries
    }
}

/// Sequence hashes at which a segment of `lines` lines is full.
fn sequences_max(lines: usize) -> u32 {
    (lines * LINE_SEQUENCES_DUE + spare(lines)) as u32
}

/// Sequence hashes between those with which a segment of `lines` lines is due and full.
fn spare(lines: usize) -> usize {
    lines / 2
}

/// Hashes with a given tag among the sequence hashes of a column line.
fn sequences_with_tag(sequences: &SequenceColumns, tag: u16, hash_line: LineId) -> impl Iterator<Item = Hash> {
    let hashes = sequences.line(hash_line).iter().map(|&sequence| Hash::of(sequences.key(), SequenceHash(sequence)));
    hashes.filter(move |hash| hash.tag() == tag)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::sequence_columns::Column;
    use super::*;
    use crate::keyed::HashKey;
    use crate::run::published::layout::RunId;

    const KEY: HashKey = HashKey::FIXED;

    /// Hashes that cluster in a few lines, far from their home lines, some with equal slots: the segment finds each
    /// of them after splitting and doubling.
    #[test]
    fn clustered_sequence_hashes_are_found_after_growth() {
        let of_home =
            |home: usize| move |sequence: &u64| Hash::of(KEY, SequenceHash(*sequence)).home(SPLIT_LINES) == home;
        let mut crowd: Vec<u64> = (0..1 << 20).filter(of_home(7)).take(400).collect();
        crowd.extend((0..1 << 20).filter(of_home(SPLIT_LINES - 1)).take(90));
        // Equal tags next to each other share column lines.
        crowd.sort_unstable_by_key(|&sequence| Hash::of(KEY, SequenceHash(sequence)).tag());
        let alike =
            |pair: &[u64]| Hash::of(KEY, SequenceHash(pair[0])).tag() == Hash::of(KEY, SequenceHash(pair[1])).tag();
        assert!(crowd.windows(2).any(alike), "some share tag and home");

        for split in [false, true] {
            let (mut sequences, mut column) = (SequenceColumns::new(KEY), Column::default());
            let mut lower = Segment::new(SPLIT_LINES, (0, 0));
            let mut indexed = Vec::new();
            for &sequence in &crowd {
                let sequence = SequenceHash(sequence);
                let (line, _) = sequences.open(RunId(1), &mut column);
                sequences.write(line, std::iter::once(sequence));
                sequences.validate(&mut column, 1);
                lower.put(lower.probe_start(Hash::of(KEY, sequence)), line);
                indexed.push((sequence, line));
            }
            let far = lower
                .lines
                .iter()
                .flat_map(Line::slots)
                .filter(|(_, hash_line)| hash_line.displacement() == SlotEntry::FAR);
            assert!(far.count() > 100);
            let mut upper = Segment::default();
            if split {
                upper = lower.split(&sequences);
            } else {
                lower.double(&sequences);
            }
            let half = |sequence: SequenceHash, depth: u32| split && Hash::of(KEY, sequence).upper(depth) & 1 == 1;
            for &(sequence, line) in &indexed {
                let segment = if half(sequence, 1) { &upper } else { &lower };
                let found = segment.find(&sequences, sequence, segment.probe_start(Hash::of(KEY, sequence)));
                assert_eq!(found.map(|(_, found)| found), Some(line));
            }
            for &(sequence, line) in &indexed {
                let segment = if half(sequence, 1) { &mut upper } else { &mut lower };
                segment.remove(segment.probe_start(Hash::of(KEY, sequence)), line);
            }
            assert!(lower.is_empty() && upper.is_empty());
            let counters = |line: &Line| [0, 1, 2, 3].map(|kind| line.overflow.count(kind));
            let is_left = |count: &u16| *count > 0 && *count < Overflow::COUNT_MAX;
            let is_clean = |line: &Line| line.used == 0 && !counters(line).iter().any(is_left);
            assert!(lower.lines.iter().all(is_clean), "nothing is left behind");
        }
    }
}
