//! Comparison of a query with the blocks of one run.

use super::published::Run;
use super::published::atomics::{AtomicU64, Relaxed};
use super::published::fingerprint::fingerprint_of;
use super::published::layout::{Info, RunPosition, SECTION_BLOCKS};
use super::published::prefetch::prefetch;
use super::widest::widest;
use crate::LocalHash;

/// The writer changed a structure that the query has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conflict;

/// Version and info of a run, if it is a child of this parent that starts with this block.
#[inline(always)]
pub(super) fn as_child(run: Run<'_>, parent: RunPosition, local: LocalHash) -> Result<Option<(u64, Info)>, Conflict> {
    let version = run.version().ok_or(Conflict)?;
    let info = run.info();
    let is_child = info.len() > 0 && info.parent() == parent && run.locals()[0].load(Relaxed) == local.0;
    Ok(is_child.then_some((version, info)))
}

/// Blocks that are compared at a time: a cache line of the column.
const STRIDE: usize = if cfg!(loom) { 1 } else { 8 };
/// Blocks that are compared before any further prefetch: most matches end among them.
const NEAR_BLOCKS: usize = if cfg!(loom) { 1 } else { 3 * STRIDE };

/// Counts the leading blocks of `query` that equal the run's.
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

/// Continues [`match_length`] after the first [`NEAR_BLOCKS`] blocks were equal, for a column as long as the query.
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
            // The first difference is in the next section.
            start = NEAR_BLOCKS.max(same * SECTION_BLOCKS);
            end = (same + 1) * SECTION_BLOCKS;
            prefetch_blocks(&column[start..end]);
        }
    }
    start + mismatch(&column[start..end], &query[start..end])
}

/// Prefetches the header and the blocks that are compared first.
#[inline]
pub(super) fn prefetch_start(record: &[AtomicU64]) {
    record.iter().step_by(STRIDE).take(1 + NEAR_BLOCKS / STRIDE).for_each(prefetch);
}

#[inline]
fn prefetch_blocks(column: &[AtomicU64]) {
    column.iter().step_by(STRIDE).for_each(prefetch);
}

/// Counts the leading sections of the query that have these fingerprints.
fn equal_sections(fingerprints: &[AtomicU64], query: &[LocalHash]) -> usize {
    widest(|| {
        let (sections, _) = query.as_chunks();
        let mut sections = sections.iter().zip(fingerprints);
        let different = sections.position(|(section, expected)| fingerprint_of(section) != expected.load(Relaxed));
        different.unwrap_or(fingerprints.len())
    })
}

/// Index of the first difference of two slices of the same length, or that length. Compares eight blocks at a time
/// without a branch.
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
