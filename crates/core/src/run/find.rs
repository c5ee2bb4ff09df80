//! The query path through the published structures.
//!
//! A query walks down the runs and compares local hashes. It merges the holdings of each run while the next run is
//! loaded from memory. At the end it checks the version of every run on its path and starts again if one has changed.
//! It takes no lock and writes nothing that other threads read.

use super::comparison::{Conflict, as_child, match_length, prefetch_start};
use super::matches::Step;
use super::published::atomics::{Acquire, fence, pause};
use super::published::layout::{Info, RunId, RunPosition};
use super::published::{Published, Run};
use super::scratch::Scratch;
use crate::LocalHash;

/// Whether a walk met twins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathKind {
    /// The path is the only one.
    Single,
    /// A block on the path has a twin: more paths have these local hashes ([`super::branching`]).
    Branching,
}

/// Repeats `attempt` until nothing has changed during it. Returns none if the index is abandoned. `attempt` starts
/// from scratch each time; its reads of the rank table are validated here.
pub(super) fn until_unchanged<T>(
    published: &Published,
    mut attempt: impl FnMut() -> Result<T, Conflict>,
) -> Option<(T, u64)> {
    loop {
        if let Some(version) = published.ranks.version()
            && let Ok(result) = attempt()
        {
            // Everything read so far was still valid after the last read.
            fence(Acquire);
            if published.ranks.is_unchanged(version) {
                return Some((result, version));
            }
        }
        if published.ranks.is_abandoned() {
            return None;
        }
        pause();
    }
}

/// Computes the depths of a query.
pub(super) fn find_depths(published: &Published, query: &[LocalHash], scratch: &mut Scratch) -> Result<(), Conflict> {
    let generation = published.edges.generation();
    let holders = published.ranks.holder_count();
    let Scratch { path, depths, branches, .. } = scratch;
    let kind = walk(published, generation, query, path, |run, step| match step.base {
        0 => depths.start(holders, run.holdings(), step.matched),
        base => depths.advance(run.holdings(), base, step.matched),
    })?;
    if path.is_empty() {
        depths.clear(holders);
    }
    branches.clear();
    if kind == PathKind::Branching {
        branches.follow(published, generation, query, path)?;
        branches.merge(published, depths);
        branches.check(published)?;
    }
    check(published, generation, path)
}

/// Checks that nothing on the path has changed since it was read.
pub(super) fn check(published: &Published, generation: u32, path: &[Step]) -> Result<(), Conflict> {
    fence(Acquire);
    let same = path.iter().all(|step| published.run(step.run).is_unchanged(step.version));
    if same && published.edges.generation() == generation { Ok(()) } else { Err(Conflict) }
}

/// Follows the query from the root while any rank's blocks match. Calls `meanwhile` for each run on the path, in
/// order, while the next run is loaded from memory.
#[inline]
pub(super) fn walk<'p>(
    published: &'p Published,
    generation: u32,
    query: &[LocalHash],
    path: &mut Vec<Step>,
    mut meanwhile: impl FnMut(Run<'p>, Step),
) -> Result<PathKind, Conflict> {
    path.clear();
    let mut kind = PathKind::Single;
    let mut parent = RunPosition::ROOT;
    let mut base = 0;
    let mut likely = None;
    let mut last = None;
    loop {
        let mut use_last = || {
            if let Some((run, step)) = last.take() {
                meanwhile(run, step);
            }
        };
        let next = child(published, generation, (parent, likely), &query[base..], &mut use_last)?;
        use_last();
        let Some((run, version, info)) = next else { return Ok(kind) };
        let record = published.run(run);
        likely = record.child();
        if let Some((_, child)) = likely {
            // Loads while this run is compared.
            prefetch_start(published.run(child).record);
        }
        let matched = match_length(record, info, &query[base..]);
        if info.has(Info::TWIN | Info::TWIN_INSIDE) {
            kind = PathKind::Branching;
        }
        let step = Step { run, version, base: base as u32, matched: matched as u32, info };
        path.push(step);
        last = Some((record, step));
        if matched == 0 {
            // The writer is changing the run: a run is found by its first block, so an unchanged run matches at least
            // that.
            return Err(Conflict);
        }
        base += matched;
        parent = RunPosition { run, offset: (matched - 1) as u16 };
    }
}

/// Finds the run that follows `parent` with the query's first block, with the version from before its first read.
/// Among several twins it prefers the first one, if that still exists. `likely` may be a child run of that run, with
/// its offset. Calls `meanwhile` zero, one or more times, each time a run is being loaded from memory.
#[inline]
fn child(
    published: &Published,
    generation: u32,
    (parent, likely): (RunPosition, Option<(u16, RunId)>),
    query: &[LocalHash],
    mut meanwhile: impl FnMut(),
) -> Result<Option<(RunId, u64, Info)>, Conflict> {
    let Some(&local) = query.first() else { return Ok(None) };
    if let Some((_, run)) = likely.filter(|&(offset, _)| offset == parent.offset) {
        meanwhile();
        if let Some((version, info)) = as_child(published.run(run), parent, local)?
            && !info.has(Info::LATER_TWIN)
        {
            return Ok(Some((run, version, info)));
        }
    }
    let mut found = Ok(None);
    published.edges.search(generation, published.edges.hash(parent, local), |run| {
        let record = published.run(run);
        prefetch_start(record.record);
        meanwhile();
        match as_child(record, parent, local) {
            Ok(None) => false,
            Ok(Some((version, info))) => {
                let is_first = !info.has(Info::LATER_TWIN);
                if is_first || found == Ok(None) {
                    found = Ok(Some((run, version, info)));
                }
                is_first
            }
            Err(changed) => {
                found = Err(changed);
                true
            }
        }
    });
    found
}
