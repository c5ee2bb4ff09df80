//! How a query goes through the published side.
//!
//! It walks down comparing local hashes and lays the holdings of the runs on its way over each other, those of one while
//! the next comes from memory. At last it looks whether any of these runs has changed its version meanwhile; if so it
//! starts again. It takes no lock and writes nothing that others see.

use super::matches::{Scratch, Step};
use super::published::atomics::{Acquire, AtomicU64, Relaxed, fence, pause};
use super::published::fingerprint::fingerprint_of;
use super::published::layout::{Info, Position, RunId, SECTION_BLOCKS};
use super::published::prefetch::prefetch;
use super::published::{Published, Run};
use super::widest::widest;
use crate::LocalHash;

/// The writer changed something that the query has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conflict;

/// What a walk found out besides its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathKind {
    /// The path is the only one.
    Single,
    /// Some block on the way has a twin: there are more paths with these local hashes ([`super::branching`]).
    Branching,
}

/// Tries until nothing has changed while a query was answered, or the index is abandoned: then there is no result.
/// `attempt` starts from nothing each time; what it reads of ranks' names is checked here.
pub(super) fn until_unchanged<T>(
    published: &Published,
    mut attempt: impl FnMut() -> Result<T, Conflict>,
) -> Option<(T, u64)> {
    loop {
        if let Some(version) = published.ranks.version()
            && let Ok(result) = attempt()
        {
            // What has been read was still so after all of it was read.
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

/// Fills in the depths of a query.
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

/// Whether everything on the path is still as it was found.
pub(super) fn check(published: &Published, generation: u32, path: &[Step]) -> Result<(), Conflict> {
    fence(Acquire);
    let same = path.iter().all(|step| published.run(step.run).is_unchanged(step.version));
    if same && published.edges.generation() == generation { Ok(()) } else { Err(Conflict) }
}

/// Follows the query from the root as far as blocks are known, whoever holds them. Calls `meanwhile` for each run on its
/// way, in order: while the next one comes from memory.
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
    let mut parent = Position::ROOT;
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
            // On its way from memory while this run is compared.
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
            // Only a run that is being changed: its first block is what it was found by.
            return Err(Conflict);
        }
        base += matched;
        parent = Position { run, offset: (matched - 1) as u16 };
    }
}

/// The run that follows `parent` with the query's first block, with its version from before it was looked at; of several
/// twins, the first one if it is still there. `likely` may be one that hangs from that run at some offset. Calls `meanwhile`, perhaps not once, perhaps more often, when a run is
/// asked for and will take a while to come.
#[inline]
fn child(
    published: &Published,
    generation: u32,
    (parent, likely): (Position, Option<(u16, RunId)>),
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

/// Version and info of a run, if it is a child of this parent that starts with this block.
#[inline(always)]
pub(super) fn as_child(run: Run<'_>, parent: Position, local: LocalHash) -> Result<Option<(u64, Info)>, Conflict> {
    let version = run.version().ok_or(Conflict)?;
    let info = run.info();
    let is_child = info.len() > 0 && info.parent() == parent && run.locals()[0].load(Relaxed) == local.0;
    Ok(is_child.then_some((version, info)))
}

/// Blocks that are compared at a time: a cache line of the column.
const STRIDE: usize = if cfg!(loom) { 1 } else { 8 };
/// Blocks that are compared before anything further is asked for: most matches end among them.
const NEAR_BLOCKS: usize = if cfg!(loom) { 1 } else { 3 * STRIDE };

/// Leading blocks of `query` that the run has.
#[inline]
pub(super) fn match_length(run: Run<'_>, info: Info, query: &[LocalHash]) -> usize {
    let column = run.locals();
    let count = query.len().min(info.len()).min(column.len());
    let (column, query) = (&column[..count], &query[..count]);
    let near_end = count.min(NEAR_BLOCKS);
    let near = mismatch(&column[..near_end], &query[..near_end]);
    if near < NEAR_BLOCKS {
        return near;
    }
    match_beyond(run, column, query)
}

/// The same once the first [`NEAR_BLOCKS`] are known to be equal, of a column that is as long as the query.
#[inline]
fn match_beyond(run: Run<'_>, column: &[AtomicU64], query: &[LocalHash]) -> usize {
    let fingerprints = run.fingerprints();
    let sections = fingerprints.len().min(query.len() / SECTION_BLOCKS);
    let mut start = NEAR_BLOCKS.max(sections * SECTION_BLOCKS);
    let mut end = column.len();
    prefetch_blocks(&column[start..end]);
    if sections > 0 {
        prefetch(&fingerprints[0]);
        let same = equal_sections(&fingerprints[..sections], query);
        if same < sections {
            // The end is in the next one.
            start = NEAR_BLOCKS.max(same * SECTION_BLOCKS);
            end = (same + 1) * SECTION_BLOCKS;
            prefetch_blocks(&column[start..end]);
        }
    }
    start + mismatch(&column[start..end], &query[start..end])
}

/// The header and the blocks that are compared first.
#[inline]
fn prefetch_start(record: &[AtomicU64]) {
    record.iter().step_by(STRIDE).take(1 + NEAR_BLOCKS / STRIDE).for_each(prefetch);
}

#[inline]
fn prefetch_blocks(column: &[AtomicU64]) {
    column.iter().step_by(STRIDE).for_each(prefetch);
}

/// Leading sections of the query that have these fingerprints.
fn equal_sections(fingerprints: &[AtomicU64], query: &[LocalHash]) -> usize {
    widest(|| {
        let (sections, _) = query.as_chunks();
        let mut sections = sections.iter().zip(fingerprints);
        let different = sections.position(|(section, expected)| fingerprint_of(section) != expected.load(Relaxed));
        different.unwrap_or(fingerprints.len())
    })
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
    }
    let same = column_rest.iter().zip(query_rest).take_while(|(column, query)| column.load(Relaxed) == query.0);
    equal + same.count()
}
