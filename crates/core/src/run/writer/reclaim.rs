//! Incremental freeing of memory that a rank, a domain or an index has left behind: many small pieces, a few at a
//! time.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::run::published::Published;

use super::Writer;
use super::reference_counts::ReferenceCountsByRun;
use super::segment::Segment;

/// Pieces of memory to which nothing refers.
#[derive(Debug)]
pub(super) enum Garbage {
    ReferenceCounts(ReferenceCountsByRun),
    Directory(Vec<Segment>),
    Index(RetiredIndex),
}

/// An index that a compacted copy has replaced, or an abandoned copy.
pub(super) struct RetiredIndex {
    /// Its pieces, each with the steps of freeing it.
    pieces: Box<dyn Iterator<Item = usize> + Send + Sync>,
    /// Its published part. Its pieces are freed last, or by the last reader that still uses it.
    published: Option<Arc<Published>>,
}

impl std::fmt::Debug for RetiredIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RetiredIndex").finish_non_exhaustive()
    }
}

impl RetiredIndex {
    /// Frees one piece and returns the steps.
    fn reclaim_piece(&mut self) -> Option<usize> {
        self.pieces.next().or_else(|| {
            let published = Arc::into_inner(self.published.take()?)?;
            self.pieces = Box::new(published.into_pieces());
            self.pieces.next()
        })
    }
}

impl Garbage {
    /// Frees one piece and returns the steps; none when no piece is left.
    fn reclaim_piece(&mut self) -> Option<usize> {
        match self {
            Self::ReferenceCounts(intervals) => intervals.next().map(|_| 1),
            Self::Directory(segments) => segments.pop().map(|_| 1),
            Self::Index(index) => index.reclaim_piece(),
        }
    }
}

/// Queue of all memory to be freed.
#[derive(Debug, Default)]
pub(super) struct ReclaimQueue {
    queue: VecDeque<(Garbage, usize)>,
    bytes: usize,
}

impl ReclaimQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Enqueues memory of `bytes` bytes.
    pub(super) fn push(&mut self, garbage: Garbage, bytes: usize) {
        self.bytes += bytes;
        self.queue.push_back((garbage, bytes));
    }

    /// Appends another queue.
    pub(super) fn append(&mut self, other: Self) {
        self.queue.extend(other.queue);
        self.bytes += other.bytes;
    }

    /// Frees one piece and returns the steps.
    pub(super) fn reclaim_piece(&mut self) -> usize {
        while let Some((garbage, bytes)) = self.queue.front_mut() {
            if let Some(steps) = garbage.reclaim_piece() {
                return steps;
            }
            self.bytes -= *bytes;
            self.queue.pop_front();
        }
        0
    }

    /// Bytes of the entries that are not freed completely.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Writer {
    /// Enqueues an index that this one has replaced, to be freed in pieces.
    pub(in crate::run) fn reclaim_index(&mut self, index: Self) {
        let bytes = index.memory().bytes_taken;
        let Self { published, runs, sequences, domains, ranks, retention_table, reclaim_queue, .. } = index;
        self.reclaim_queue.append(reclaim_queue);
        let ranks = ranks.into_pieces().chain(retention_table.into_pieces());
        let pieces = runs.into_pieces().chain(sequences.into_pieces()).chain(domains.into_pieces()).chain(ranks);
        let index = RetiredIndex { pieces: Box::new(pieces), published: Some(published) };
        self.reclaim_queue.push(Garbage::Index(index), bytes);
    }

    /// Abandons the copy under construction, if there is one.
    pub(in crate::run) fn abandon_copy(&mut self) {
        if let Some(compaction) = self.compaction.take() {
            self.reclaim_index(compaction.copy);
        }
    }
}
