//! Prefixes by their cursor ([`crate::cursor`]).
//!
//! The table of checkpoints leads to a run with the prefix's last block. The reader follows the parents of the run up
//! to the start of the sequence, copies the blocks on the way, and hashes them. Blocks with the cursor's hash are the
//! prefix, regardless of changes by the writer meanwhile. So nothing is validated by versions.

use super::published::Published;
use super::published::atomics::Relaxed;
use super::published::layout::{RunId, RunPosition};
use crate::LocalHash;
use crate::cursor::{CHECKPOINT_BLOCKS, PrefixCursor};

/// Runs of the longest prefix that is found by its cursor. It also ends a walk over runs that change meanwhile.
const PREFIX_RUNS_MAX: usize = 1 << 16;

/// The local hashes of the prefix with this cursor; none if no run has its last block.
pub(super) fn prefix(published: &Published, cursor: PrefixCursor) -> Option<Vec<LocalHash>> {
    let table = &published.checkpoints;
    loop {
        let generation = table.generation();
        let mut found = None;
        table.search(generation, table.hash_of_checkpoint(cursor), |run| {
            found = sequence(published, run).and_then(|locals| truncated(locals, cursor));
            found.is_some()
        });
        if found.is_some() || table.generation() == generation {
            return found;
        }
    }
}

/// Keeps the blocks up to the cursor, if they have one.
fn truncated(mut locals: Vec<LocalHash>, cursor: PrefixCursor) -> Option<Vec<LocalHash>> {
    let (sections, _) = locals.as_chunks::<CHECKPOINT_BLOCKS>();
    let mut checkpoints = sections.iter().scan(PrefixCursor::START, |checkpoint, section| {
        *checkpoint = checkpoint.next(section);
        Some(*checkpoint)
    });
    let sections = 1 + checkpoints.position(|checkpoint| checkpoint == cursor)?;
    locals.truncate(sections * CHECKPOINT_BLOCKS);
    Some(locals)
}

/// The blocks of a run and all blocks that precede it; none if the run is gone.
fn sequence(published: &Published, run: RunId) -> Option<Vec<LocalHash>> {
    // Runs from the last to the first, each with the number of its blocks on the way.
    let mut runs: Vec<(RunId, usize)> = Vec::new();
    let mut next = Some((run, None));
    while let Some((run, blocks)) = next {
        let info = published.run(run).info();
        let blocks = blocks.unwrap_or(info.len());
        if info.len() == 0 || blocks > info.len() || runs.len() == PREFIX_RUNS_MAX {
            return None;
        }
        runs.push((run, blocks));
        let parent = info.parent();
        next = (parent != RunPosition::ROOT).then_some((parent.run, Some(usize::from(parent.offset) + 1)));
    }
    let mut locals = Vec::with_capacity(runs.iter().map(|(_, blocks)| blocks).sum());
    for (run, blocks) in runs.into_iter().rev() {
        locals.extend(published.run(run).locals().get(..blocks)?.iter().map(|local| LocalHash(local.load(Relaxed))));
    }
    Some(locals)
}
