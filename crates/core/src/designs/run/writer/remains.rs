//! What a rank or a domain that is gone leaves in memory: many small pieces, given back a few at a time.

use std::collections::VecDeque;
use std::collections::hash_map;

use crate::keyed::KeyedSet;

use super::extra_copies::ExtraCopiesOfRuns;
use super::segment::Segment;
use crate::SequenceHash;

/// Sets of waiting blocks by the name that they wait for.
pub(super) type WaitingByParent = hash_map::IntoIter<SequenceHash, KeyedSet<SequenceHash>>;

/// Pieces of memory that nothing refers to.
#[derive(Debug)]
pub(super) enum Remains {
    Waiting(WaitingByParent),
    Copies(ExtraCopiesOfRuns),
    Directory(Vec<Segment>),
}

impl Remains {
    /// Gives a piece back, and says whether there was one.
    fn drop_piece(&mut self) -> bool {
        match self {
            Self::Waiting(sets) => sets.next().is_some(),
            Self::Copies(stretches) => stretches.next().is_some(),
            Self::Directory(segments) => segments.pop().is_some(),
        }
    }
}

/// All that is still to be given back.
#[derive(Debug, Default)]
pub(super) struct AllRemains {
    queue: VecDeque<(Remains, usize)>,
    bytes: usize,
}

impl AllRemains {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes in what takes this many bytes.
    pub(super) fn push(&mut self, remains: Remains, bytes: usize) {
        self.bytes += bytes;
        self.queue.push_back((remains, bytes));
    }

    /// Gives some pieces back. Says how many.
    pub(super) fn drop_pieces(&mut self, pieces_max: usize) -> usize {
        let mut dropped = 0;
        while dropped < pieces_max
            && let Some((remains, bytes)) = self.queue.front_mut()
        {
            if remains.drop_piece() {
                dropped += 1;
            } else {
                self.bytes -= *bytes;
                self.queue.pop_front();
            }
        }
        dropped
    }

    /// Bytes of what is not given back as a whole.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
