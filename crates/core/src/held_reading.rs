//! Reading the blocks of a rank in parts.

use crate::keyed::KeyedMap;
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

    /// The rank.
    #[must_use]
    pub const fn rank(&self) -> WorkerRank {
        self.rank
    }

    /// The blocks read so far, in no particular order.
    #[must_use]
    pub fn into_blocks(self) -> Vec<HeldBlock> {
        self.found.into_values().collect()
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
