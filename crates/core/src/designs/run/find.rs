//! How a query goes through the published side.
//!
//! It walks down comparing local hashes, then lays the holdings of the runs on its way over each
//! other, and at last looks whether any of these runs has changed its version meanwhile; if so it
//! starts again. It takes no lock and writes nothing that others see.

use std::ops::Range;

use super::branching;
use super::matches::{Scratch, Step};
use super::published::atomics::{Acquire, AtomicU64, Relaxed, fence, pause};
use super::published::edges::edge_hash;
use super::published::layout::{Info, Place, RunId};
use super::published::prefetch::prefetch;
use super::published::{Published, Run};
use crate::LocalHash;

/// The writer changed something that the query has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Changed;

/// What a walk found out besides its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The path is the only one.
    Single,
    /// Some block on the way has a twin: more than one path has these local hashes.
    Branching,
}

/// Tries until nothing has changed while a query was answered. `attempt` starts from nothing each
/// time; what it reads of ranks' names is checked here.
pub(super) fn until_unchanged<T>(published: &Published, mut attempt: impl FnMut() -> Result<T, Changed>) -> (T, u64) {
    loop {
        if let Some(version) = published.ranks.version()
            && let Ok(result) = attempt()
        {
            // What has been read was still so after all of it was read.
            fence(Acquire);
            if published.ranks.is_still(version) {
                return (result, version);
            }
        }
        pause();
    }
}

/// Fills in the depths of a query.
pub(super) fn find_depths(published: &Published, query: &[LocalHash], scratch: &mut Scratch) -> Result<(), Changed> {
    let generation = published.edges.generation();
    let way = walk(published, generation, query, &mut scratch.path)?;
    let holders = published.ranks.holder_count();
    if way == Way::Branching {
        scratch.depths.clear(holders);
        return branching::find(published, query, &mut scratch.depths);
    }
    let Scratch { path, depths, .. } = scratch;
    match path.split_first() {
        None => depths.clear(holders),
        Some((first, rest)) => {
            depths.start(holders, published.run(first.run).holdings(), first.matched);
            for step in rest {
                depths.go_on(published.run(step.run).holdings(), step.base, step.matched);
            }
        }
    }
    check(published, generation, path)
}

/// Whether everything on the path is still as it was found.
pub(super) fn check(published: &Published, generation: u32, path: &[Step]) -> Result<(), Changed> {
    fence(Acquire);
    let same = path.iter().all(|step| published.run(step.run).is_still(step.version));
    if same && published.edges.generation() == generation { Ok(()) } else { Err(Changed) }
}

/// Follows the query from the root as far as blocks are known, whoever holds them.
pub(super) fn walk(
    published: &Published,
    generation: u32,
    query: &[LocalHash],
    path: &mut Vec<Step>,
) -> Result<Way, Changed> {
    path.clear();
    let mut way = Way::Single;
    let mut parent = Place::ROOT;
    let mut base = 0;
    while let Some((run, version, info)) = child(published, generation, parent, &query[base..])? {
        let record = published.run(run);
        let matched = match_length(record, info, &query[base..]);
        if info.has(Info::TWIN | Info::TWIN_INSIDE) {
            way = Way::Branching;
        }
        path.push(Step { run, version, base: base as u32, matched: matched as u32, ragged: info.has(Info::RAGGED) });
        if matched == 0 {
            // Only a run that is being changed: its first block is what it was found by.
            return Err(Changed);
        }
        base += matched;
        parent = Place { run, offset: (matched - 1) as u16 };
    }
    Ok(way)
}

/// The run that follows `parent` with the query's first block, with its version from before it was looked at.
#[inline]
fn child(
    published: &Published,
    generation: u32,
    parent: Place,
    query: &[LocalHash],
) -> Result<Option<(RunId, u64, Info)>, Changed> {
    let mut found = Ok(None);
    let Some(&local) = query.first() else { return found };
    published.edges.search(generation, edge_hash(parent, local), |run| {
        let record = published.run(run);
        let Some(version) = record.version() else {
            found = Err(Changed);
            return true;
        };
        let info = record.info();
        if info.len() > 0 && info.parent() == parent && record.locals()[0].load(Relaxed) == local.0 {
            found = Ok(Some((run, version, info)));
            return true;
        }
        false
    });
    found
}

/// Blocks that are compared at a time: a cache line of the column.
const STRIDE: usize = 8;
/// Lines of a column that match before further ones are asked for: most matches end in the first few.
const LINES_ALONE: usize = 3;
/// Lines of a column that are on their way from memory while one is compared.
const LINES_AHEAD: usize = 12;

/// Asks for lines of a column.
#[inline]
fn prefetch_lines(column: &[AtomicU64], lines: Range<usize>) {
    for line in lines {
        match column.get(line * STRIDE) {
            Some(first) => prefetch(first),
            None => break,
        }
    }
}

/// Leading blocks of `query` that the run has.
#[inline]
pub(super) fn match_length(run: Run<'_>, info: Info, query: &[LocalHash]) -> usize {
    let locals = run.locals();
    let count = query.len().min(info.len()).min(locals.len());
    mismatch(&locals[..count], &query[..count])
}

/// Index of the first difference of two slices of the same length, which is the length when there is
/// none. Eight at a time without a branch.
#[inline]
fn mismatch(column: &[AtomicU64], query: &[LocalHash]) -> usize {
    let mut equal = 0;
    let (column_strides, query_strides) = (column.chunks_exact(STRIDE), query.chunks_exact(STRIDE));
    let (column_rest, query_rest) = (column_strides.remainder(), query_strides.remainder());
    for (column_stride, query) in column_strides.zip(query_strides) {
        let mut different = 0_u32;
        for at in 0..STRIDE {
            different |= u32::from(column_stride[at].load(Relaxed) != query[at].0) << at;
        }
        if different != 0 {
            return equal + different.trailing_zeros() as usize;
        }
        equal += STRIDE;
        // Only what goes on for a while is worth the bandwidth.
        let line = equal / STRIDE;
        if line >= LINES_ALONE {
            let from = if line == LINES_ALONE { line + 1 } else { line + LINES_AHEAD };
            prefetch_lines(column, from..line + LINES_AHEAD + 1);
        }
    }
    let same = column_rest.iter().zip(query_rest).take_while(|(column, query)| column.load(Relaxed) == query.0);
    equal + same.count()
}
