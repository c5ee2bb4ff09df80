//! Sequence hashes of blocks: a column for each run and hash domain.
//!
//! A column is a list of lines. A line has six sequence hashes and identifies its run, all within one cache line, so
//! finding a block by its sequence hash reads no other line. A column always starts at the run's first block, because
//! a block gets a sequence hash only after its parent has one.

use std::iter;

use bytemuck::Zeroable;

use super::chunked::{CHUNK, Chunked};
use crate::SequenceHash;
use crate::keyed::HashKey;
use crate::run::published::layout::{RunId, RunPosition};
use crate::run::published::prefetch::prefetch;

/// Sequence hashes in a line.
pub(super) const LINE_SEQUENCES: usize = 6;

/// Number of a line; zero is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Zeroable)]
pub(super) struct LineId(pub(super) u32);

impl LineId {
    pub(super) const NONE: Self = Self(0);
    /// Bits of a line number.
    pub(super) const BITS: u32 = 29;
    const END: u32 = 1 << Self::BITS;
}

/// Consecutive sequence hashes of a column, with their position in it.
#[derive(Debug, Clone, Copy, Zeroable)]
#[repr(C, align(64))]
struct Line {
    sequences: [u64; LINE_SEQUENCES],
    run: RunId,
    /// Number of the line in its column.
    index: u16,
    /// Valid sequence hashes in the line.
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

/// The sequence hashes of a run's first blocks in one hash domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Zeroable)]
pub(super) struct Column {
    pub(super) first: LineId,
    /// None if the column is empty.
    pub(super) last: LineId,
    /// Number of blocks with sequence hashes.
    pub(super) len: u16,
}

/// All lines of all columns.
#[derive(Debug)]
pub(super) struct SequenceColumns {
    lines: Chunked<Line>,
    end: u32,
    free: LineId,
    in_use: usize,
    /// Sequence hashes in all columns together.
    count: usize,
    key: HashKey,
}

impl SequenceColumns {
    pub(super) fn new(key: HashKey) -> Self {
        // Line zero means none.
        Self { lines: Chunked::default(), end: 1, free: LineId::NONE, in_use: 0, count: 0, key }
    }

    /// Frees the memory in pieces and yields the steps of each.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = usize> {
        self.lines.into_pieces()
    }

    /// Key of the directories' hash.
    #[inline]
    pub(super) fn key(&self) -> HashKey {
        self.key
    }

    /// The line for the column's next sequence hashes, and how many fit.
    #[inline]
    pub(super) fn open(&mut self, run: RunId, column: &mut Column) -> (LineId, usize) {
        let used = usize::from(column.len) % LINE_SEQUENCES;
        if used == 0 {
            self.add_line(run, column);
        }
        (column.last, LINE_SEQUENCES - used)
    }

    /// Writes sequence hashes after those of an open line. They are not valid yet.
    #[inline]
    pub(super) fn write(&mut self, line: LineId, sequences: impl Iterator<Item = SequenceHash>) {
        let line = &mut self.lines[line.0];
        for (slot, sequence) in line.sequences.iter_mut().skip(line.used.into()).zip(sequences) {
            *slot = sequence.0;
        }
    }

    /// Makes the first `count` of the hashes written last valid, as the column's next ones.
    #[inline]
    pub(super) fn validate(&mut self, column: &mut Column, count: usize) {
        self.lines[column.last.0].used += count as u16;
        column.len += count as u16;
        self.count += count;
        if count == 0 {
            // The open line may have remained empty.
            self.truncate(column, column.len);
        }
    }

    /// Adds a line to a column whose lines are full.
    fn add_line(&mut self, run: RunId, column: &mut Column) {
        let line = self.take();
        let index = column.len / LINE_SEQUENCES as u16;
        // Stale sequence hashes may stay in the line: none of them is valid.
        let new = &mut self.lines[line.0];
        (new.run, new.index, new.used, new.next, new.previous) = (run, index, 0, LineId::NONE, column.last);
        match column.last {
            LineId::NONE => column.first = line,
            last => self.lines[last.0].next = line,
        }
        column.last = line;
    }

    /// The column's lines, last first, each with its sequence hashes after the first `keep` of the column.
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

    /// Removes all sequence hashes but the first `keep`, which must exist.
    pub(super) fn truncate(&mut self, column: &mut Column, keep: u16) {
        self.count -= usize::from(column.len - keep);
        column.len = keep;
        let lines = keep.div_ceil(LINE_SEQUENCES as u16);
        while column.last != LineId::NONE && self.lines[column.last.0].index >= lines {
            let line = column.last;
            column.last = self.lines[line.0].previous;
            self.free(line);
        }
        if column.last == LineId::NONE {
            column.first = LineId::NONE;
            return;
        }
        let link = &mut self.lines[column.last.0];
        link.next = LineId::NONE;
        link.used = keep - link.index * LINE_SEQUENCES as u16;
    }

    /// The sequence hash at an offset that has one. Costs the distance from the nearer end of the column.
    pub(super) fn at(&self, column: &Column, offset: u16) -> SequenceHash {
        debug_assert!(offset < column.len);
        SequenceHash(self.lines[self.line_of(column, offset).0].sequences[usize::from(offset) % LINE_SEQUENCES])
    }

    /// The line of an offset that has a sequence hash.
    pub(super) fn line_of(&self, column: &Column, offset: u16) -> LineId {
        let (index, last) = (offset / LINE_SEQUENCES as u16, (column.len - 1) / LINE_SEQUENCES as u16);
        if index <= last / 2 {
            return (0..index).fold(column.first, |line, _| self.lines[line.0].next);
        }
        (index..last).fold(column.last, |line, _| self.lines[line.0].previous)
    }

    /// The line of an offset before another one whose line is known. Costs the lines between.
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

    /// The valid sequence hashes of a line.
    #[inline]
    pub(super) fn line(&self, line: LineId) -> &[u64] {
        self.lines[line.0].valid()
    }

    /// Prefetches a line.
    #[inline]
    pub(super) fn prefetch(&self, line: LineId) {
        prefetch(&self.lines[line.0]);
    }

    /// Prefetches the line that is probably `lines` lines before this one: a column's lines are mostly consecutive.
    #[inline]
    pub(super) fn prefetch_before(&self, line: LineId, lines: u32) {
        self.prefetch(LineId(line.0.saturating_sub(lines)));
    }

    /// Finds a sequence hash in a line and returns the position of its block.
    #[inline]
    pub(super) fn find_in(&self, line: LineId, sequence: SequenceHash) -> Option<RunPosition> {
        let line = &self.lines[line.0];
        let mut equal = 0_u32;
        for (at, &other) in line.sequences.iter().enumerate() {
            equal |= u32::from(other == sequence.0) << at;
        }
        let at = (equal & ((1 << line.used) - 1)).trailing_zeros();
        (at < LINE_SEQUENCES as u32)
            .then(|| RunPosition { run: line.run, offset: line.index * LINE_SEQUENCES as u16 + at as u16 })
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
                    // The next line to be written, a few sequence hashes later.
                    prefetch(&self.lines[self.free.0]);
                }
                line
            }
        }
    }

    fn free(&mut self, line: LineId) {
        self.in_use -= 1;
        let given = &mut self.lines[line.0];
        (given.run, given.used, given.next) = (RunId::NONE, 0, self.free);
        self.free = line;
    }

    /// Sequence hashes in all columns: at least one for every indexed block.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Reserves memory for `lines` more lines.
    pub(super) fn reserve(&mut self, lines: usize) {
        if let Some(missing) = lines.checked_sub(self.lines_at_hand()).filter(|&missing| missing > 0) {
            let last = (self.lines.room() + missing - 1) as u32;
            self.lines.ensure(last);
        }
    }

    /// Additional bytes that `lines` more lines would take.
    pub(super) fn bytes_for(&self, lines: usize) -> usize {
        let missing = lines.saturating_sub(self.lines_at_hand());
        missing.div_ceil(CHUNK) * CHUNK * size_of::<Line>()
    }

    /// Lines that can be used without more memory.
    pub(super) fn lines_at_hand(&self) -> usize {
        self.lines.room() - self.in_use - 1.min(self.lines.room())
    }

    /// Allocated bytes.
    pub(super) fn bytes_allocated(&self) -> usize {
        self.lines.bytes()
    }

    /// Bytes in use, and bytes that were ever in use.
    pub(super) fn bytes(&self) -> (usize, usize) {
        (self.in_use * size_of::<Line>(), self.end as usize * size_of::<Line>())
    }
}
