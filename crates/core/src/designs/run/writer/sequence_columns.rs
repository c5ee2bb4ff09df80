//! What engines call the blocks: for each run and hash domain a column of sequence hashes.
//!
//! A column is a list of lines. A line has six names and says whose they are, in one line of the processor's cache: a
//! block that is found by its name costs no other. Names of a column always start at the run's first
//! block, because a block is named only after its parent.

use std::iter;

use bytemuck::Zeroable;

use super::chunked::{CHUNK, Chunked};
use crate::SequenceHash;
use crate::designs::run::published::layout::{Position, RunId};
use crate::designs::run::published::prefetch::prefetch;
use crate::keyed::HashKey;

/// Names in a line.
pub(super) const LINE_SEQUENCES: usize = 6;

/// A line of names; zero is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Zeroable)]
pub(super) struct LineId(pub(super) u32);

impl LineId {
    pub(super) const NONE: Self = Self(0);
    /// Lines have numbers of so many bits.
    pub(super) const BITS: u32 = 29;
    const END: u32 = 1 << Self::BITS;
}

/// Some names of a column, and where they stand in it.
#[derive(Debug, Clone, Copy, Zeroable)]
#[repr(C, align(64))]
struct Line {
    sequences: [u64; LINE_SEQUENCES],
    run: RunId,
    /// Number of the line in its column.
    index: u16,
    /// Names in the line that are valid.
    used: u16,
    next: LineId,
    previous: LineId,
}

impl Line {
    #[inline]
    fn valid(&self) -> &[u64] {
        &self.sequences[..usize::from(self.used)]
    }
}

/// The names of the first blocks of one run in one hash domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Zeroable)]
pub(super) struct Column {
    pub(super) first: LineId,
    last: LineId,
    /// Blocks with names.
    pub(super) len: u16,
}

/// All lines of all columns.
#[derive(Debug)]
pub(super) struct SequenceColumns {
    lines: Chunked<Line>,
    end: u32,
    free: LineId,
    in_use: usize,
    /// Names in all columns together.
    count: usize,
    key: HashKey,
}

impl SequenceColumns {
    pub(super) fn new(key: HashKey) -> Self {
        // Line zero is none.
        Self { lines: Chunked::default(), end: 1, free: LineId::NONE, in_use: 0, count: 0, key }
    }

    /// Gives the memory back piece by piece, each with the steps that it takes.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = usize> {
        self.lines.into_pieces()
    }

    /// The key of the directories' hash.
    #[inline]
    pub(super) fn key(&self) -> HashKey {
        self.key
    }

    /// The line that the column's next names go into, and how many have room there.
    #[inline]
    pub(super) fn open(&mut self, run: RunId, column: &mut Column) -> (LineId, usize) {
        let used = usize::from(column.len) % LINE_SEQUENCES;
        if used == 0 {
            self.add_line(run, column);
        }
        (column.last, LINE_SEQUENCES - used)
    }

    /// Writes names behind those of an open line. They are not valid yet.
    #[inline]
    pub(super) fn write(&mut self, line: LineId, sequences: impl Iterator<Item = SequenceHash>) {
        let line = &mut self.lines[line.0];
        for (position, sequence) in line.sequences.iter_mut().skip(line.used.into()).zip(sequences) {
            *position = sequence.0;
        }
    }

    /// The first `count` names that were written last are valid and the column's next ones.
    #[inline]
    pub(super) fn validate(&mut self, column: &mut Column, count: usize) {
        self.lines[column.last.0].used += count as u16;
        column.len += count as u16;
        self.count += count;
        if count == 0 {
            // The line may have been opened in vain.
            self.truncate(column, column.len);
        }
    }

    /// Gives a column whose lines are full one more.
    fn add_line(&mut self, run: RunId, column: &mut Column) {
        let line = self.take();
        let index = column.len / LINE_SEQUENCES as u16;
        // The names are left as they are: none of them is valid.
        let new = &mut self.lines[line.0];
        (new.run, new.index, new.used, new.next, new.previous) = (run, index, 0, LineId::NONE, column.last);
        match column.last {
            LineId::NONE => column.first = line,
            last => self.lines[last.0].next = line,
        }
        column.last = line;
    }

    /// The column's lines, last first, each with those of its names that stand behind the first `keep`.
    pub(super) fn last_lines(&self, column: &Column, keep: u16) -> impl Iterator<Item = (LineId, &[u64])> + Clone {
        let lines = iter::successors(Some(column.last), |line| Some(self.previous(*line)));
        let lines = lines.take_while(|&line| line != LineId::NONE);
        let with_sequences = lines.map(move |id| {
            let line = &self.lines[id.0];
            let kept = usize::from(keep.saturating_sub(line.index * LINE_SEQUENCES as u16));
            (id, line.valid().get(kept..).unwrap_or_default())
        });
        with_sequences.take_while(|(_, sequences)| !sequences.is_empty())
    }

    /// The line of the column's last name; none in an empty column.
    pub(super) fn last_line(&self, column: &Column) -> LineId {
        column.last
    }

    /// Takes all names away but the first `keep`, of which there are no more than now.
    pub(super) fn truncate(&mut self, column: &mut Column, keep: u16) {
        self.count -= usize::from(column.len - keep);
        column.len = keep;
        let lines = keep.div_ceil(LINE_SEQUENCES as u16);
        while column.last != LineId::NONE && self.lines[column.last.0].index >= lines {
            let line = column.last;
            column.last = self.lines[line.0].previous;
            self.give_back(line);
        }
        if column.last == LineId::NONE {
            column.first = LineId::NONE;
            return;
        }
        let link = &mut self.lines[column.last.0];
        link.next = LineId::NONE;
        link.used = keep - link.index * LINE_SEQUENCES as u16;
    }

    /// The name at an offset that has one. Costs the distance from the nearer end of the column.
    pub(super) fn at(&self, column: &Column, offset: u16) -> SequenceHash {
        debug_assert!(offset < column.len);
        SequenceHash(self.lines[self.line_of(column, offset).0].sequences[usize::from(offset) % LINE_SEQUENCES])
    }

    /// The line of an offset that has a name.
    pub(super) fn line_of(&self, column: &Column, offset: u16) -> LineId {
        let (index, last) = (offset / LINE_SEQUENCES as u16, (column.len - 1) / LINE_SEQUENCES as u16);
        if index <= last / 2 {
            return (0..index).fold(column.first, |line, _| self.lines[line.0].next);
        }
        (index..last).fold(column.last, |line, _| self.lines[line.0].previous)
    }

    /// The line of an offset that comes before another one, of which the line is known. Costs the lines between.
    pub(super) fn line_before(&self, line: LineId, offset: u16, before: u16) -> LineId {
        let back = offset / LINE_SEQUENCES as u16 - before / LINE_SEQUENCES as u16;
        (0..back).fold(line, |line, _| self.previous(line))
    }

    pub(super) fn next(&self, line: LineId) -> LineId {
        self.lines[line.0].next
    }

    pub(super) fn previous(&self, line: LineId) -> LineId {
        self.lines[line.0].previous
    }

    /// The valid names of a line.
    #[inline]
    pub(super) fn line(&self, line: LineId) -> &[u64] {
        self.lines[line.0].valid()
    }

    /// Asks for a line from memory.
    #[inline]
    pub(super) fn prefetch(&self, line: LineId) {
        prefetch(&self.lines[line.0]);
    }

    /// Asks for what is probably the line so many before this one: lines of a column are mostly in order.
    #[inline]
    pub(super) fn prefetch_before(&self, line: LineId, lines: u32) {
        self.prefetch(LineId(line.0.saturating_sub(lines)));
    }

    /// Whether the line holds the name, and where that block is.
    #[inline]
    pub(super) fn find_in(&self, line: LineId, sequence: SequenceHash) -> Option<Position> {
        let line = &self.lines[line.0];
        let mut equal = 0_u32;
        for (at, &other) in line.sequences.iter().enumerate() {
            equal |= u32::from(other == sequence.0) << at;
        }
        let at = (equal & ((1 << line.used) - 1)).trailing_zeros();
        (at < LINE_SEQUENCES as u32)
            .then(|| Position { run: line.run, offset: line.index * LINE_SEQUENCES as u16 + at as u16 })
    }

    fn take(&mut self) -> LineId {
        self.in_use += 1;
        match self.free {
            LineId::NONE => {
                let line = LineId(self.end);
                assert!(line.0 < LineId::END, "fewer than 2^32 lines of sequence hashes");
                self.end += 1;
                self.lines.ensure(line.0);
                line
            }
            line => {
                self.free = self.lines[line.0].next;
                if self.free != LineId::NONE {
                    // The next one to be written, when a few more names have come.
                    prefetch(&self.lines[self.free.0]);
                }
                line
            }
        }
    }

    fn give_back(&mut self, line: LineId) {
        self.in_use -= 1;
        let given = &mut self.lines[line.0];
        (given.run, given.used, given.next) = (RunId::NONE, 0, self.free);
        self.free = line;
    }

    /// Names in all columns together: at least one for every block that has a place.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Makes room for so many lines more.
    pub(super) fn reserve(&mut self, lines: usize) {
        if let Some(missing) = lines.checked_sub(self.lines_at_hand()).filter(|&missing| missing > 0) {
            let last = (self.lines.room() + missing - 1) as u32;
            self.lines.ensure(last);
        }
    }

    /// Bytes of more memory that so many lines more would take.
    pub(super) fn bytes_for(&self, lines: usize) -> usize {
        let missing = lines.saturating_sub(self.lines_at_hand());
        missing.div_ceil(CHUNK) * CHUNK * size_of::<Line>()
    }

    /// Lines that can be used without more memory.
    pub(super) fn lines_at_hand(&self) -> usize {
        self.lines.room() - self.in_use - 1.min(self.lines.room())
    }

    /// Bytes that are allocated.
    pub(super) fn bytes_allocated(&self) -> usize {
        self.lines.bytes()
    }

    /// Bytes in use, and bytes that ever were.
    pub(super) fn bytes(&self) -> (usize, usize) {
        (self.in_use * size_of::<Line>(), self.end as usize * size_of::<Line>())
    }
}
