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

use super::directory_line::{Hash, Line, Overflow, ProbeStart, SLOTS, SlotEntry, TAG_BITS, ones};
use super::sequence_columns::{LineId, SequenceColumns};
use crate::SequenceHash;
use crate::designs::run::effort::{self, Effort};
use crate::designs::run::published::layout::Position;
use crate::designs::run::published::prefetch::prefetch;

/// Names for each line at which a segment counts as full.
const LINE_SEQUENCES_MAX: usize = 7;
/// Lines of a segment that is split rather than doubled.
const SPLIT_LINES: usize = 1_024;
const SEGMENT_LINES_MIN: usize = 2;
/// Lines of slots whose names are asked for ahead when a segment is refilled.
const REFILLED_AHEAD: usize = 3;
/// Segments with fewer lines are not worth halving.
const SHRUNK_LINES_MIN: usize = 64;
/// The bits of a tag that choose the segment tell names of one segment apart no longer.
const DEPTH_MAX: u32 = 10;

/// A name taken out of its slot: where it belongs, and its line of names.
type Displaced = (ProbeStart, LineId);

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
        Self { lines: bytemuck::zeroed_slice_box(lines), room: sequences_max(lines), depth, prefix }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn prefix(&self) -> usize {
        self.prefix as usize
    }

    fn count(&self) -> u32 {
        sequences_max(self.lines.len()) - self.room
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

    /// Lines of names in which a name may stand, as far as the line where it belongs says.
    pub(super) fn candidates(&self, start: ProbeStart) -> impl Iterator<Item = LineId> {
        let line = self.line(start);
        ones(line.with_tag(start.tag) as u16).map(|slot| line.entries[slot].line())
    }

    pub(super) fn find(
        &self,
        sequences: &SequenceColumns,
        sequence: SequenceHash,
        start: ProbeStart,
    ) -> Option<(Position, LineId)> {
        let mut at = start.home as usize;
        for _ in 0..self.lines.len() {
            effort::spend(Effort::DirectoryLine, 1);
            let line = &self.lines[at];
            let mut candidates = line.with_tag(start.tag);
            while candidates != 0 {
                let candidate = line.entries[candidates.trailing_zeros() as usize].line();
                if let Some(hash_line) = sequences.find_in(candidate, sequence) {
                    return Some((hash_line, candidate));
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

    /// Takes in a name for which there is room, if the line where it belongs tells by itself that it is new and has a
    /// slot for it.
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

    /// Takes in a name for which there is room.
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

    /// Forgets a name that is here.
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

    /// Forgets a name that is in one of the lines behind the one where it belongs.
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

    /// Takes the names out whose tags go on with a one, into a segment of their own.
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

    /// Takes out all names that do not stand where they belong. Without them nothing has overflowed.
    fn take_displaced(&mut self, sequences: &SequenceColumns) -> Vec<Displaced> {
        let mask = self.lines.len() - 1;
        let (mut displaced, mut far) = (Vec::new(), Vec::new());
        for (at, line) in self.lines.iter_mut().enumerate() {
            line.overflow = Overflow::NONE;
            let leaving_slots = line.displaced();
            for slot in ones(leaving_slots) {
                let (tag, hash_line) = (line.tags[slot], line.entries[slot]);
                match hash_line.displacement() {
                    SlotEntry::FAR => far.push((tag, hash_line.line())),
                    displacement => {
                        let home = (at.wrapping_sub(displacement) & mask) as u32;
                        displaced.push((ProbeStart { home, tag }, hash_line.line()));
                    }
                }
            }
            line.clear(leaving_slots);
        }
        if !far.is_empty() {
            let homes = self.homes_of_far(sequences, far, &displaced);
            displaced.extend(homes);
        }
        self.room += displaced.len() as u32;
        displaced
    }

    /// The lines where names belong that stand so far from them that their slots do not say it: only the
    /// names do. Of names that are alike, those are meant whose slots are not found otherwise.
    fn homes_of_far(
        &self,
        sequences: &SequenceColumns,
        mut far: Vec<(u16, LineId)>,
        displaced: &[Displaced],
    ) -> Vec<Displaced> {
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

    /// Twice the lines: which of two a name belongs to, only the name says.
    pub(super) fn double(&mut self, sequences: &SequenceColumns) {
        self.refill(sequences, self.lines.len() * 2);
    }

    /// Half of the lines, for few names.
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

    /// Every name of the segment, by its hash, and its line.
    fn entries(&self, sequences: &SequenceColumns) -> Vec<(Hash, LineId)> {
        let mut entries = Vec::with_capacity(self.count() as usize);
        let mut ambiguous = Vec::new();
        // Names come from memory while those of the lines before are read.
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
        // Names of one line with one tag have slots that look alike: each name once.
        ambiguous.sort_unstable();
        ambiguous.dedup();
        for (hash_line, tag) in ambiguous {
            entries.extend(sequences_with_tag(sequences, tag, hash_line).map(|hash| (hash, hash_line)));
        }
        entries
    }
}

/// Names with which a segment of so many lines counts as full.
fn sequences_max(lines: usize) -> u32 {
    (lines * LINE_SEQUENCES_MAX) as u32
}

/// Hashes of the names in a line that have a tag.
fn sequences_with_tag(sequences: &SequenceColumns, tag: u16, hash_line: LineId) -> impl Iterator<Item = Hash> {
    let hashes = sequences.line(hash_line).iter().map(|&sequence| Hash::of(sequences.key(), SequenceHash(sequence)));
    hashes.filter(move |hash| hash.tag() == tag)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::sequence_columns::Column;
    use super::*;
    use crate::designs::run::published::layout::RunId;
    use crate::keyed::HashKey;

    const KEY: HashKey = HashKey::FIXED;

    /// Names that crowd into a few lines, far from where they belong, some of them alike in every way that
    /// slots can tell: split or doubled, the segment knows each of them.
    #[test]
    fn clustered_sequence_hashes_are_found_after_growth() {
        let of_home =
            |home: usize| move |sequence: &u64| Hash::of(KEY, SequenceHash(*sequence)).home(SPLIT_LINES) == home;
        let mut crowd: Vec<u64> = (0..1 << 20).filter(of_home(7)).take(400).collect();
        crowd.extend((0..1 << 20).filter(of_home(SPLIT_LINES - 1)).take(90));
        // Equal tags beside each other share lines of names.
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
