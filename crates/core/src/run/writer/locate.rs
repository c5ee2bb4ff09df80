//! Positions of blocks: lookup by sequence hash and by parent, and allocation of positions for new blocks.

use super::Writer;
use super::runs::DomainId;
use super::sequence_columns::{LINE_SEQUENCES, LineId};
use crate::run::published::atomics::{Relaxed, Release};
use crate::run::published::fingerprint::fingerprint_of;
use crate::run::published::holdings::HoldingsWord;
use crate::run::published::layout::{
    HOLDINGS, INFO, Info, RUN_BLOCKS_MAX, RunId, RunPosition, SECTION_BLOCKS, class_for,
};
use crate::run::widest::widest;
use crate::{Block, LocalHash, SequenceHash};

/// Position of a block, and the line with its sequence hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) position: RunPosition,
    pub(super) line: LineId,
}

impl Cursor {
    pub(super) const ROOT: Self = Self { position: RunPosition::ROOT, line: LineId::NONE };
}

/// Lines that are prefetched ahead when a column is followed backward.
const LINES_AHEAD: u32 = 4;

/// Result of a lookup of a block below a certain parent in a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockLookup {
    /// The sequence hash belongs to exactly this block.
    Found(Cursor),
    /// The block exists, and the domain has no sequence hash for it yet.
    WithoutHash(RunPosition),
    /// No such block exists.
    Absent,
    /// The domain has another sequence hash for the block.
    OtherHash,
    /// The domain has another block, at this position, under the sequence hash.
    OtherPosition(RunPosition),
}

impl Writer {
    /// Finds the block with a sequence hash.
    #[inline]
    pub(super) fn find_sequence(&self, domain: DomainId, sequence: SequenceHash) -> Option<Cursor> {
        let (position, line) = self.domains.get(domain).directory.find(&self.sequences, sequence)?;
        Some(Cursor { position, line })
    }

    /// The domain's sequence hash of a block that has one.
    pub(super) fn sequence_of(&self, domain: DomainId, position: RunPosition) -> SequenceHash {
        self.sequences.at(&self.runs.get(position.run).columns.get(domain), position.offset)
    }

    /// The domain's sequence hash of the parent of a block that has one.
    pub(super) fn parent_sequence(&self, domain: DomainId, position: RunPosition) -> Option<SequenceHash> {
        let parent = self.parent_of(position);
        (parent != RunPosition::ROOT).then(|| self.sequence_of(domain, parent))
    }

    pub(super) fn parent_of(&self, position: RunPosition) -> RunPosition {
        match position.offset.checked_sub(1) {
            Some(offset) => RunPosition { run: position.run, offset },
            None => self.runs.get(position.run).parent(),
        }
    }

    pub(super) fn local_of(&self, position: RunPosition) -> LocalHash {
        LocalHash(self.published.run(position.run).locals()[usize::from(position.offset)].load(Relaxed))
    }

    /// Counts how many of `blocks` follow the cursor in its own run under the domain's sequence hashes. Returns the
    /// count and the last of them.
    pub(super) fn following_in_column(&self, domain: DomainId, at: Cursor, blocks: &[Block]) -> (usize, Cursor) {
        if at.position == RunPosition::ROOT {
            return (0, at);
        }
        let column_len = self.runs.get(at.position.run).columns.get(domain).len;
        let in_run = usize::from(column_len - 1 - at.position.offset);
        if let Some(next) = blocks.get(in_run).filter(|_| in_run > 0) {
            self.prefetch_next(domain, at.position.run, next);
        }
        let locals = &self.published.run(at.position.run).locals()[..usize::from(column_len)];
        let (mut cursor, mut known) = (at, 0);
        let mut sequences = self.sequences.line(at.line);
        for block in blocks {
            let next = usize::from(cursor.position.offset) + 1;
            if next >= locals.len() || locals[next].load(Relaxed) != block.local.0 {
                break;
            }
            let mut line = cursor.line;
            if next.is_multiple_of(LINE_SEQUENCES) {
                line = self.sequences.next(line);
                sequences = self.sequences.line(line);
            }
            if sequences[next % LINE_SEQUENCES] != block.sequence.0 {
                break;
            }
            cursor = Cursor { position: RunPosition { offset: next as u16, ..cursor.position }, line };
            known += 1;
        }
        (known, cursor)
    }

    /// Counts how many of `sequences` precede the cursor, one after the other, in its own column. Returns the count
    /// and the last of them.
    pub(super) fn preceding_in_column(&self, at: Cursor, sequences: &[SequenceHash]) -> (usize, Cursor) {
        let (mut cursor, mut count) = (at, 0);
        if sequences.len() > LINE_SEQUENCES {
            (1..LINES_AHEAD).for_each(|lines| self.sequences.prefetch_before(at.line, lines));
        }
        while cursor.position.offset > 0 && count < sequences.len() {
            let (line, within) = match usize::from(cursor.position.offset) % LINE_SEQUENCES {
                0 => (self.sequences.previous(cursor.line), LINE_SEQUENCES),
                within => (cursor.line, within),
            };
            self.sequences.prefetch_before(line, LINES_AHEAD);
            let before = self.sequences.line(line)[..within].iter().rev();
            let same = before.zip(&sequences[count..]).take_while(|&(&known, sequence)| known == sequence.0).count();
            if same == 0 {
                break;
            }
            cursor = Cursor {
                position: RunPosition { offset: cursor.position.offset - same as u16, ..cursor.position },
                line,
            };
            count += same;
        }
        (count, cursor)
    }

    /// Looks up a block below `parent`.
    pub(super) fn locate(&self, domain: DomainId, parent: RunPosition, block: &Block) -> BlockLookup {
        if let Some(found) = self.find_sequence(domain, block.sequence) {
            let fits = self.parent_of(found.position) == parent && self.local_of(found.position) == block.local;
            return if fits { BlockLookup::Found(found) } else { BlockLookup::OtherPosition(found.position) };
        }
        let mut other_sequence = false;
        for position in self.followers(parent, block.local) {
            if self.runs.get(position.run).columns.get(domain).len > position.offset {
                other_sequence = true;
            } else {
                return BlockLookup::WithoutHash(position);
            }
        }
        if other_sequence { BlockLookup::OtherHash } else { BlockLookup::Absent }
    }

    /// Every block with this local hash right after `parent`, the preferred one first. Several such blocks are twins.
    pub(super) fn followers(&self, parent: RunPosition, local: LocalHash) -> Vec<RunPosition> {
        let mut positions = Vec::new();
        if parent != RunPosition::ROOT {
            let (state, next) = (self.runs.get(parent.run), RunPosition { offset: parent.offset + 1, ..parent });
            if next.offset < state.len && self.local_of(next) == local {
                positions.push(next);
            }
            if state.children == 0 || state.deepest_child < parent.offset {
                // The end of a growing chain: no edge can exist.
                return positions;
            }
        }
        let edges = &self.published.edges;
        edges.search(edges.generation(), edges.hash(parent, local), |run| {
            let position = RunPosition { run, offset: 0 };
            if self.runs.get(run).parent() == parent && self.local_of(position) == local {
                positions.push(position);
            }
            false
        });
        if positions.len() > 1 {
            positions.sort_by_key(|position| self.is_later_twin(position.run));
        }
        positions
    }

    /// Adds sequence hashes to existing blocks from `position` on, in its run: at least one, up to the first block
    /// that differs or sequence hash that the domain already has.
    pub(super) fn extend_column(
        &mut self,
        domain: DomainId,
        position: RunPosition,
        blocks: &[Block],
    ) -> (usize, Cursor) {
        let RunPosition { run, offset } = position;
        let state = self.runs.get(run);
        debug_assert_eq!(state.columns.get(domain).len, offset, "a column has no gaps");
        let locals = &self.published.run(run).locals()[usize::from(offset)..usize::from(state.len)];
        let same = locals.iter().zip(blocks).take_while(|(local, block)| local.load(Relaxed) == block.local.0);
        let same = same.count();
        self.push_sequences(domain, run, sequences_of(&blocks[..same]))
    }

    /// Appends new blocks to the run of `parent` if that ends there, after its tail has moved if necessary, and has
    /// room; else to a new run. Returns how many: at least one, up to the end of the run or to a sequence hash that
    /// the domain already has.
    pub(super) fn append(&mut self, domain: DomainId, parent: RunPosition, blocks: &[Block]) -> (usize, Cursor) {
        let at_end = parent != RunPosition::ROOT
            && (parent.offset + 1 == self.runs.get(parent.run).len || self.move_tail(domain, parent));
        let (run, start) = match at_end && usize::from(parent.offset) + 1 < parent.run.capacity() {
            true => (parent.run, usize::from(parent.offset) + 1),
            false => (self.new_run(blocks.len(), self.room_of_chain(parent)), 0),
        };
        let room = run.capacity() - start;
        let (count, last) = self.fill(domain, run, start, &blocks[..blocks.len().min(room)]);
        let info = if start == 0 { Info::new(parent) } else { self.info(run) };
        self.publish_length(run, info, start, start + count);
        (count, last)
    }

    /// Changes the run's version, so that a reader that has read the run without the flag starts again.
    pub(super) fn set_flag(&mut self, run: RunId, flag: u64) {
        self.change_info(run, |info| Info(info.0 | flag));
    }

    /// Allocates a run with room for `blocks` blocks, and at least `room`.
    pub(super) fn new_run(&mut self, blocks: usize, room: usize) -> RunId {
        let mut class = class_for(blocks.max(room));
        if self.bounded.is_some() {
            class = self.class_within_bound(class, blocks);
        }
        let run = self.runs.take(&self.published.runs, class);
        if let Some(bounded) = &mut self.bounded {
            bounded.values.start(run);
        }
        run
    }

    /// Blocks that a run after `parent` should have room for if it continues a long chain: such chains grow block by block,
    /// and each of their runs is a step for every query.
    pub(super) fn room_of_chain(&self, parent: RunPosition) -> usize {
        let continues_chain = parent != RunPosition::ROOT
            && (usize::from(parent.offset) + 1 == parent.run.capacity() || self.leaves_tail(parent));
        if continues_chain { (self.depth_of(parent) / 2).min(RUN_BLOCKS_MAX) } else { 0 }
    }

    /// Number of blocks from the root to `position`, inclusive; distant ancestors are not counted.
    pub(super) fn depth_of(&self, mut position: RunPosition) -> usize {
        let mut depth = 0;
        while position != RunPosition::ROOT && depth < 2 * RUN_BLOCKS_MAX {
            depth += usize::from(position.offset) + 1;
            position = self.runs.get(position.run).parent();
        }
        depth
    }

    /// Writes blocks, sequence hashes and the fingerprints of completed sections after the end of a run, where no reader
    /// reads yet.
    pub(super) fn fill(&mut self, domain: DomainId, run: RunId, start: usize, blocks: &[Block]) -> (usize, Cursor) {
        let (count, last) = self.push_sequences(domain, run, sequences_of(blocks));
        let run = self.published.run(run);
        for (local, block) in run.locals()[start..].iter().zip(&blocks[..count]) {
            local.store(block.local.0, Relaxed);
        }
        let sections = run.locals().as_chunks::<SECTION_BLOCKS>().0.iter().zip(run.fingerprints());
        let complete = start / SECTION_BLOCKS..(start + count) / SECTION_BLOCKS;
        for (section, fingerprint) in sections.skip(complete.start).take(complete.len()) {
            let section = std::array::from_fn(|at| LocalHash(section[at].load(Relaxed)));
            fingerprint.store(widest(|| fingerprint_of(&section)), Relaxed);
        }
        (count, last)
    }

    /// Appends sequence hashes to the domain's column of a run, up to the first one that the domain already has.
    /// Returns how many, and the last of them.
    pub(super) fn push_sequences(
        &mut self,
        domain: DomainId,
        run: RunId,
        new: impl ExactSizeIterator<Item = SequenceHash>,
    ) -> (usize, Cursor) {
        let Self { domains, sequences, directory_batches, runs, rare_bytes, .. } = self;
        let columns = &mut runs.get_mut(run).columns;
        let mut column = columns.get(domain);
        let preceding_in_column = column.len;
        let directory = &mut domains.get_mut(domain).directory;
        let bytes_before = directory.bytes();
        directory.extend((sequences, directory_batches), (run, &mut column), new);
        let bytes = (bytes_before, directory.bytes());
        columns.set_counted(domain, column, rare_bytes);
        self.count_directory(bytes);
        if preceding_in_column == 0 && column.len > 0 {
            self.column_started(run, domain);
        }
        let last = RunPosition { run, offset: column.len - 1 };
        ((column.len - preceding_in_column).into(), Cursor { position: last, line: column.last })
    }

    /// Publishes written blocks. A new run is linked to its parent.
    pub(super) fn publish_length(&mut self, run: RunId, info: Info, start: usize, end: usize) {
        self.runs.get_mut(run).len = end as u16;
        let info = info.with_len(end);
        if start > 0 {
            self.published.run(run).record[INFO].store(info.0, Release);
            self.publish_checkpoints(run, start);
            return;
        }
        let parent = info.parent();
        let info = self.start_checkpoints(run, info);
        self.runs.link(run, parent);
        self.child_attached(run);
        self.change_run(run, |run| {
            run.record[INFO].store(info.0, Relaxed);
            run.record[HOLDINGS].store(HoldingsWord::EMPTY.0, Relaxed);
        });
        let hash = self.published.edges.hash(parent, self.local_of(RunPosition { run, offset: 0 }));
        self.edges.insert(&self.published.edges, hash, run);
        self.publish_checkpoints(run, start);
        self.publish_child(parent.run);
    }

    /// Publishes the run that was attached to this one last.
    pub(super) fn publish_child(&self, run: RunId) {
        if run != RunId::NONE {
            let form = &self.published.run(run).record[HOLDINGS];
            let before = HoldingsWord(form.load(Relaxed));
            let after = before.with_child(self.runs.latest_child(run));
            if after != before {
                form.store(after.0, Release);
            }
        }
    }
}

fn sequences_of(blocks: &[Block]) -> impl ExactSizeIterator<Item = SequenceHash> {
    blocks.iter().map(|block| block.sequence)
}
