//! Checkpoints: the writer publishes which run contains the prefix that ends at each checkpoint ([`crate::cursor`]).
//!
//! There is a checkpoint after every [`CHECKPOINT_BLOCKS`] blocks from the start of a sequence, wherever runs begin. The
//! header of a run has the last checkpoint before the run, and the number of blocks since then, its phase. The run's own
//! checkpoints follow from these and from its blocks.

use super::Writer;
use crate::LocalHash;
use crate::cursor::{CHECKPOINT_BLOCKS, PrefixCursor};
use crate::run::published::atomics::{AtomicU64, Relaxed};
use crate::run::published::layout::{CHECKPOINT, Info, RunId, RunPosition};

/// A checkpoint in a run, after this number of the run's blocks.
#[derive(Debug, Clone, Copy)]
struct OwnCheckpoint {
    blocks: u16,
    checkpoint: PrefixCursor,
}

/// Runs whose last checkpoint is remembered, in 24 KiB.
const RECENT: usize = if cfg!(loom) { 2 } else { 1024 };

/// The last checkpoints of runs that grew recently. Chains grow at their ends, so most checkpoints follow one of these.
#[derive(Debug)]
pub(super) struct RecentCheckpoints(Box<[(RunId, OwnCheckpoint)]>);

impl Default for RecentCheckpoints {
    fn default() -> Self {
        Self(vec![(RunId::NONE, OwnCheckpoint { blocks: 0, checkpoint: PrefixCursor::START }); RECENT].into())
    }
}

impl RecentCheckpoints {
    fn place(run: RunId) -> usize {
        (run.number() as usize + 37 * run.class()) % RECENT
    }

    /// A checkpoint in the first `blocks_max` blocks of a run.
    fn of(&self, run: RunId, blocks_max: usize) -> Option<OwnCheckpoint> {
        let (other, own) = self.0[Self::place(run)];
        (other == run && usize::from(own.blocks) <= blocks_max).then_some(own)
    }

    fn record(&mut self, run: RunId, own: OwnCheckpoint) {
        self.0[Self::place(run)] = (run, own);
    }

    fn forget(&mut self, run: RunId) {
        let (other, _) = &mut self.0[Self::place(run)];
        if *other == run {
            *other = RunId::NONE;
        }
    }
}

impl Writer {
    /// Sets the last checkpoint before a new run, and returns its info with the phase.
    pub(super) fn start_checkpoints(&mut self, run: RunId, info: Info) -> Info {
        let parent = info.parent();
        let (checkpoint, phase) = match parent {
            RunPosition::ROOT => (PrefixCursor::START, 0),
            RunPosition { run, offset } => {
                let blocks = usize::from(offset) + 1;
                let known = self.recent_checkpoints.of(run, blocks);
                let mut checkpoint = known.map_or(self.checkpoint_before(run), |known| known.checkpoint);
                self.each_checkpoint(run, known, blocks, |own| checkpoint = own.checkpoint);
                (checkpoint, (self.phase(run) + blocks) % CHECKPOINT_BLOCKS)
            }
        };
        self.published.run(run).record[CHECKPOINT].store(checkpoint.0, Relaxed);
        info.with_phase(phase)
    }

    /// Publishes the checkpoints of a run beyond its first `start` blocks. The run has its new length.
    pub(super) fn publish_checkpoints(&mut self, run: RunId, start: usize) {
        let len = self.runs.get(run).len.into();
        for own in self.checkpoints_between(run, start, len).1 {
            let hash = self.published.checkpoints.hash_of_checkpoint(own.checkpoint);
            self.checkpoints.insert(&self.published.checkpoints, hash, run);
            self.recent_checkpoints.record(run, own);
        }
    }

    /// Removes the checkpoints of a run beyond its first `len` blocks, before it is truncated or freed.
    pub(super) fn remove_checkpoints(&mut self, run: RunId, len: usize) {
        let (before, removed) = self.checkpoints_between(run, len, self.runs.get(run).len.into());
        match before {
            Some(before) => self.recent_checkpoints.record(run, before),
            None => self.recent_checkpoints.forget(run),
        }
        for own in removed {
            let hash = self.published.checkpoints.hash_of_checkpoint(own.checkpoint);
            self.checkpoints.remove(&self.published.checkpoints, hash, run);
        }
    }

    /// A checkpoint in the first `start` blocks of a run, if one is known, and all later checkpoints in the first `end` blocks.
    fn checkpoints_between(&self, run: RunId, start: usize, end: usize) -> (Option<OwnCheckpoint>, Vec<OwnCheckpoint>) {
        let phase = self.phase(run);
        let mut before = self.recent_checkpoints.of(run, start);
        let mut checkpoints = Vec::new();
        if (phase + start) / CHECKPOINT_BLOCKS < (phase + end) / CHECKPOINT_BLOCKS {
            self.each_checkpoint(run, before, end, |own| match usize::from(own.blocks) > start {
                true => checkpoints.push(own),
                false => before = Some(own),
            });
        }
        (before, checkpoints)
    }

    /// Calls `each` with the checkpoints in the first `end` blocks of a run, after `known` if that is given.
    fn each_checkpoint(
        &self,
        run: RunId,
        known: Option<OwnCheckpoint>,
        end: usize,
        mut each: impl FnMut(OwnCheckpoint),
    ) {
        let phase = self.phase(run);
        if phase + end < CHECKPOINT_BLOCKS {
            return;
        }
        let load = |local: &AtomicU64| LocalHash(local.load(Relaxed));
        let locals = &self.published.run(run).locals()[..end];
        let mut own = known.unwrap_or_else(|| {
            let first = &locals[..CHECKPOINT_BLOCKS - phase];
            let mut section = [LocalHash(0); CHECKPOINT_BLOCKS];
            self.copy_ancestors(run, &mut section[..phase]);
            section[phase..].iter_mut().zip(first).for_each(|(local, own)| *local = load(own));
            let own =
                OwnCheckpoint { blocks: first.len() as u16, checkpoint: self.checkpoint_before(run).next(&section) };
            each(own);
            own
        });
        for section in locals[own.blocks.into()..].as_chunks::<CHECKPOINT_BLOCKS>().0 {
            // An array's `map` moves its elements one by one.
            let mut copied = [LocalHash(0); CHECKPOINT_BLOCKS];
            copied.iter_mut().zip(section).for_each(|(into, local)| *into = load(local));
            own.checkpoint = own.checkpoint.next(&copied);
            own.blocks += CHECKPOINT_BLOCKS as u16;
            each(own);
        }
    }

    /// Copies the blocks that precede a run.
    fn copy_ancestors(&self, run: RunId, into: &mut [LocalHash]) {
        let (mut parent, mut left) = (self.runs.get(run).parent(), into);
        while !left.is_empty() {
            let locals = &self.published.run(parent.run).locals()[..=usize::from(parent.offset)];
            let (rest, last) = left.split_at_mut(left.len().saturating_sub(locals.len()));
            let locals = &locals[locals.len() - last.len()..];
            last.iter_mut().zip(locals).for_each(|(into, local)| *into = LocalHash(local.load(Relaxed)));
            (parent, left) = (self.runs.get(parent.run).parent(), rest);
        }
    }

    fn checkpoint_before(&self, run: RunId) -> PrefixCursor {
        PrefixCursor(self.published.run(run).record[CHECKPOINT].load(Relaxed))
    }

    fn phase(&self, run: RunId) -> usize {
        self.info(run).phase()
    }
}
