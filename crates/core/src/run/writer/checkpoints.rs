//! Checkpoints: the writer publishes which run contains the prefix that ends at each checkpoint ([`crate::cursor`]).
//!
//! A checkpoint lies after every [`CHECKPOINT_BLOCKS`] blocks from the start of a sequence, wherever runs begin. The
//! header of a run has the last checkpoint before the run, and the number of blocks since then, its phase. From these
//! and from the run's blocks follow its own checkpoints.

use super::Writer;
use crate::LocalHash;
use crate::cursor::{CHECKPOINT_BLOCKS, PrefixCursor};
use crate::run::published::atomics::{AtomicU64, Relaxed};
use crate::run::published::layout::{CHECKPOINT, INFO, Info, Position, RunId};

impl Writer {
    /// Sets the last checkpoint before a new run, and returns its info with the phase.
    pub(super) fn start_checkpoints(&mut self, run: RunId, info: Info) -> Info {
        let parent = info.parent();
        let (checkpoint, phase) = match parent {
            Position::ROOT => (PrefixCursor::START, 0),
            Position { run, offset } => {
                let (mut checkpoint, blocks) = (self.checkpoint_before(run), usize::from(offset) + 1);
                self.each_checkpoint(run, blocks, |_, own| checkpoint = own);
                (checkpoint, (self.phase(run) + blocks) % CHECKPOINT_BLOCKS)
            }
        };
        self.published.run(run).record[CHECKPOINT].store(checkpoint.0, Relaxed);
        info.with_phase(phase)
    }

    /// Publishes the checkpoints of a run beyond its first `start` blocks. The run has its new length.
    pub(super) fn publish_checkpoints(&mut self, run: RunId, start: usize) {
        let len = self.runs.get(run).len.into();
        for checkpoint in self.checkpoints_between(run, start, len) {
            let hash = self.published.checkpoints.hash_of_checkpoint(checkpoint);
            self.checkpoints.insert(&self.published.checkpoints, hash, run);
        }
    }

    /// Removes the checkpoints of a run beyond its first `len` blocks, before it is truncated or freed.
    pub(super) fn remove_checkpoints(&mut self, run: RunId, len: usize) {
        for checkpoint in self.checkpoints_between(run, len, self.runs.get(run).len.into()) {
            let hash = self.published.checkpoints.hash_of_checkpoint(checkpoint);
            self.checkpoints.remove(&self.published.checkpoints, hash, run);
        }
    }

    /// Checkpoints after more than `start` and at most `end` blocks of a run.
    fn checkpoints_between(&self, run: RunId, start: usize, end: usize) -> Vec<PrefixCursor> {
        let phase = self.phase(run);
        let mut checkpoints = Vec::new();
        if (phase + start) / CHECKPOINT_BLOCKS < (phase + end) / CHECKPOINT_BLOCKS {
            self.each_checkpoint(run, end, |blocks, checkpoint| {
                if blocks > start {
                    checkpoints.push(checkpoint);
                }
            });
        }
        checkpoints
    }

    /// Calls `each` with the checkpoints in the first `end` blocks of a run, and the number of blocks up to each.
    fn each_checkpoint(&self, run: RunId, end: usize, mut each: impl FnMut(usize, PrefixCursor)) {
        let phase = self.phase(run);
        if phase + end < CHECKPOINT_BLOCKS {
            return;
        }
        let load = |local: &AtomicU64| LocalHash(local.load(Relaxed));
        let locals = &self.published.run(run).locals()[..end];
        let (first, others) = locals.split_at(CHECKPOINT_BLOCKS - phase);
        let mut section = [LocalHash(0); CHECKPOINT_BLOCKS];
        self.copy_ancestors(run, &mut section[..phase]);
        section[phase..].iter_mut().zip(first).for_each(|(local, own)| *local = load(own));
        let (mut blocks, mut checkpoint) = (first.len(), self.checkpoint_before(run).next(&section));
        each(blocks, checkpoint);
        for others in others.as_chunks::<CHECKPOINT_BLOCKS>().0 {
            (blocks, checkpoint) = (blocks + CHECKPOINT_BLOCKS, checkpoint.next(&others.each_ref().map(load)));
            each(blocks, checkpoint);
        }
    }

    /// Copies the blocks that precede a run.
    fn copy_ancestors(&self, run: RunId, into: &mut [LocalHash]) {
        let mut position = self.runs.get(run).parent();
        for local in into.iter_mut().rev() {
            *local = self.local_of(position);
            position = self.parent_of(position);
        }
    }

    fn checkpoint_before(&self, run: RunId) -> PrefixCursor {
        PrefixCursor(self.published.run(run).record[CHECKPOINT].load(Relaxed))
    }

    fn phase(&self, run: RunId) -> usize {
        Info(self.published.run(run).record[INFO].load(Relaxed)).phase()
    }
}
