//! What a rank, a domain or an index that is gone leaves in memory: many small pieces, given back a few at a time.

use std::collections::VecDeque;
use std::collections::hash_map;
use std::sync::Arc;

use crate::designs::run::published::Published;
use crate::keyed::KeyedSet;

use super::Writer;
use super::reference_counts::ReferenceCountsByRun;
use super::segment::Segment;
use crate::SequenceHash;

/// Sets of waiting blocks by the name that they wait for.
pub(super) type WaitingByParent = hash_map::IntoIter<SequenceHash, KeyedSet<SequenceHash>>;

/// Pieces of memory that nothing refers to.
#[derive(Debug)]
pub(super) enum Garbage {
    Waiting(WaitingByParent),
    Copies(ReferenceCountsByRun),
    Directory(Vec<Segment>),
    Index(RetiredIndex),
}

/// An index whose smaller copy has taken its place, or a copy that was given up.
pub(super) struct RetiredIndex {
    /// Pieces of it, each with the steps that giving it back takes.
    pieces: Box<dyn Iterator<Item = usize> + Send + Sync>,
    /// What readers see of it: its pieces come last, or go with the last reader that is still in it.
    published: Option<Arc<Published>>,
}

impl std::fmt::Debug for RetiredIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RetiredIndex").finish_non_exhaustive()
    }
}

impl RetiredIndex {
    /// Gives a piece back, and says how many steps that took.
    fn reclaim_piece(&mut self) -> Option<usize> {
        self.pieces.next().or_else(|| {
            let published = Arc::into_inner(self.published.take()?)?;
            self.pieces = Box::new(published.into_pieces());
            self.pieces.next()
        })
    }
}

impl Garbage {
    /// Gives a piece back, and says how many steps that took; none when there is no other.
    fn reclaim_piece(&mut self) -> Option<usize> {
        match self {
            Self::Waiting(sets) => sets.next().map(|_| 1),
            Self::Copies(stretches) => stretches.next().map(|_| 1),
            Self::Directory(segments) => segments.pop().map(|_| 1),
            Self::Index(index) => index.reclaim_piece(),
        }
    }
}

/// All that is still to be given back.
#[derive(Debug, Default)]
pub(super) struct ReclaimQueue {
    queue: VecDeque<(Garbage, usize)>,
    bytes: usize,
}

impl ReclaimQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes in what takes this many bytes.
    pub(super) fn push(&mut self, reclaim_queue: Garbage, bytes: usize) {
        self.bytes += bytes;
        self.queue.push_back((reclaim_queue, bytes));
    }

    /// Takes in all that another list has.
    pub(super) fn append(&mut self, other: Self) {
        self.queue.extend(other.queue);
        self.bytes += other.bytes;
    }

    /// Gives one piece back. Says how many steps that took.
    pub(super) fn reclaim_piece(&mut self) -> usize {
        while let Some((reclaim_queue, bytes)) = self.queue.front_mut() {
            if let Some(steps) = reclaim_queue.reclaim_piece() {
                return steps;
            }
            self.bytes -= *bytes;
            self.queue.pop_front();
        }
        0
    }

    /// Bytes of what is not given back as a whole.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Writer {
    /// Gives back an index whose place this one has taken, a piece at a time.
    pub(in crate::designs::run) fn give_back(&mut self, index: Self) {
        let bytes = index.memory().bytes_taken;
        let Self { published, runs, sequences, domains, ranks, retention_table, reclaim_queue, .. } = index;
        self.reclaim_queue.append(reclaim_queue);
        let ranks = ranks.into_pieces().chain(retention_table.into_pieces());
        let pieces = runs.into_pieces().chain(sequences.into_pieces()).chain(domains.into_pieces()).chain(ranks);
        let index = RetiredIndex { pieces: Box::new(pieces), published: Some(published) };
        self.reclaim_queue.push(Garbage::Index(index), bytes);
    }

    /// Gives up the copy that is being made, if there is one.
    pub(in crate::designs::run) fn give_up_copy(&mut self) {
        if let Some(compaction) = self.compaction.take() {
            self.give_back(compaction.into_copy());
        }
    }
}
