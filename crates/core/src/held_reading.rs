//! Reading the blocks of a rank in parts.

use std::collections::hash_map::IntoValues;

use crate::keyed::{KeyedMap, KeyedState};
use crate::{HeldBlock, SequenceHash, WorkerRank};

/// Passes over a rank before its remaining blocks are read at once.
const PASSES_MAX: u32 = 2;

/// A reading of the blocks that a rank holds, in parts.
///
/// Between two parts other ranks may change, and their events may move blocks of this rank between runs. So a part may find
/// blocks again, and a pass over all runs may miss some. The reading is complete when it has found as many blocks as the rank
/// holds. The caller lets no event of the rank itself pass meanwhile.
#[derive(Debug)]
pub struct HeldReading {
    rank: WorkerRank,
    found: KeyedMap<SequenceHash, HeldBlock>,
    pass: u32,
    /// Entry of the rank's list of runs, and offset in the run, at which the next part begins.
    pub(crate) entry: usize,
    pub(crate) offset: u16,
}

/// Whether a reading has all blocks of its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadingProgress {
    /// Blocks may be missing.
    More,
    /// All blocks are read.
    Complete,
}

impl HeldReading {
    /// A reading that has not begun.
    #[must_use]
    pub fn new(rank: WorkerRank) -> Self {
        Self { rank, found: KeyedMap::default(), pass: 0, entry: 0, offset: 0 }
    }

    /// A reading of a rank that holds about `blocks` blocks. While it holds no more than a quarter above that, no part grows the table
    /// of what is read, which takes a time in proportion to all blocks read so far. Costs about 70 bytes a block, most of which is
    /// touched only as blocks are read.
    #[must_use]
    pub fn with_capacity(rank: WorkerRank, blocks: usize) -> Self {
        let found = KeyedMap::with_capacity_and_hasher(blocks + blocks / 4, KeyedState);
        Self { found, ..Self::new(rank) }
    }

    /// The rank.
    #[must_use]
    pub const fn rank(&self) -> WorkerRank {
        self.rank
    }

    /// The blocks read so far, in no particular order. Costs as much as all of them: not for a thread that others wait for.
    #[must_use]
    pub fn into_blocks(self) -> Vec<HeldBlock> {
        self.into_iter().collect()
    }

    pub(crate) fn add(&mut self, blocks: impl IntoIterator<Item = HeldBlock>) {
        self.found.extend(blocks.into_iter().map(|block| (block.sequence, block)));
    }

    /// Replaces what was read by all blocks of the rank.
    pub(crate) fn set(&mut self, blocks: Vec<HeldBlock>) -> ReadingProgress {
        self.found.clear();
        self.add(blocks);
        ReadingProgress::Complete
    }

    /// Ends a pass over a rank that holds `blocks` blocks. None if they are to be read at once.
    pub(crate) fn end_pass(&mut self, blocks: usize) -> Option<ReadingProgress> {
        if self.found.len() >= blocks {
            return Some(ReadingProgress::Complete);
        }
        self.pass += 1;
        (self.entry, self.offset) = (0, 0);
        (self.pass < PASSES_MAX).then_some(ReadingProgress::More)
    }
}

/// The blocks read so far, in no particular order.
impl IntoIterator for HeldReading {
    type Item = HeldBlock;
    type IntoIter = IntoValues<SequenceHash, HeldBlock>;

    fn into_iter(self) -> Self::IntoIter {
        self.found.into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DpRank, LocalHash, PerTier, WorkerId};

    #[test]
    fn no_part_grows_the_table_of_a_reading_with_capacity() {
        let rank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
        let blocks = 10_000;
        let mut reading = HeldReading::with_capacity(rank, blocks);
        let capacity = reading.found.capacity();
        let block = |number| HeldBlock {
            sequence: SequenceHash(number),
            parent: None,
            local: LocalHash(number),
            copies: PerTier::default(),
        };
        for first in (0..(blocks + blocks / 4) as u64).step_by(100) {
            reading.add((first..first + 100).map(block));
            assert_eq!(reading.found.capacity(), capacity);
        }
    }
}
