//! Reading the blocks of a rank in parts.

use std::collections::hash_map::IntoValues;

use crate::keyed::{KeyedMap, KeyedState};
use crate::{HeldBlock, SequenceHash, WorkerRank};

/// Passes over a rank before its remaining blocks are read at once.
const PASSES_MAX: u32 = 2;

/// A reading of the blocks that a rank holds, in parts.
///
/// Between two parts other ranks may change, and their events may move blocks of this rank between runs. So a part may find
/// blocks again, and a pass over all runs may miss some. The reading is complete when it has found as many blocks as the
/// rank holds. The caller applies no event of the rank itself meanwhile.
#[derive(Debug)]
pub struct HeldReading {
    rank: WorkerRank,
    found: KeyedMap<SequenceHash, HeldBlock>,
    /// None if only held blocks are read.
    kept: Option<Box<UnheldReading>>,
    pass: u32,
    /// Entry of the rank's list of runs, and offset in the run, at which the next part begins.
    pub(crate) entry: usize,
    pub(crate) offset: u16,
}

/// A reading of blocks that a rank no longer holds, and that it keeps for their descendants. They are read after the held ones.
#[derive(Debug, Default)]
struct UnheldReading {
    /// Blocks without copies.
    blocks: KeyedMap<SequenceHash, HeldBlock>,
    /// Parents that may be such blocks.
    unheld: Vec<SequenceHash>,
    has_begun: bool,
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
        Self { rank, found: KeyedMap::default(), kept: None, pass: 0, entry: 0, offset: 0 }
    }

    /// A reading of a rank that holds about `blocks` blocks. While the rank holds at most a quarter more, no part grows the
    /// table of read blocks; growing it takes a time in proportion to all blocks read so far. Costs about 70 bytes a block,
    /// most of which is touched only as blocks are read.
    #[must_use]
    pub fn with_capacity(rank: WorkerRank, blocks: usize) -> Self {
        let found = KeyedMap::with_capacity_and_hasher(blocks + blocks / 4, KeyedState);
        Self { found, ..Self::new(rank) }
    }

    /// The same reading, also of the removed blocks that the rank keeps for their descendants. An index that does not keep them adds
    /// none.
    #[must_use]
    pub fn with_kept(self) -> Self {
        Self { kept: Some(Box::default()), ..self }
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

    /// The blocks read so far, and those that the rank keeps without holding them, which have no copies. Costs as much as all of them.
    #[must_use]
    pub fn into_blocks_and_kept(self) -> Vec<HeldBlock> {
        let kept = self.kept.map(|kept| kept.blocks).unwrap_or_default();
        self.found.into_values().chain(kept.into_values()).collect()
    }

    /// Adds held blocks, in the order of their chain if they form one.
    pub(crate) fn add(&mut self, blocks: impl IntoIterator<Item = HeldBlock>) {
        let mut previous = None;
        for block in blocks {
            if let (Some(kept), Some(parent)) = (&mut self.kept, block.parent.filter(|_| block.parent != previous)) {
                kept.unheld.push(parent);
            }
            previous = Some(block.sequence);
            self.found.insert(block.sequence, block);
        }
    }

    /// Adds blocks that wait for their parent, which is not kept for them.
    pub(crate) fn add_waiting(&mut self, blocks: impl IntoIterator<Item = HeldBlock>) {
        self.found.extend(blocks.into_iter().map(|block| (block.sequence, block)));
    }

    /// Whether the held blocks are read, and the kept ones are not.
    pub(crate) fn is_of_kept(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.has_begun)
    }

    /// A parent that may be kept; the inner one is none if it is read already. None at the end.
    pub(crate) fn next_unheld(&mut self) -> Option<Option<SequenceHash>> {
        let kept = self.kept.as_mut()?;
        let sequence = kept.unheld.pop()?;
        let is_read = self.found.contains_key(&sequence) || kept.blocks.contains_key(&sequence);
        Some((!is_read).then_some(sequence))
    }

    /// Adds a kept block. Its parent may be kept as well.
    pub(crate) fn keep(&mut self, block: HeldBlock) {
        let Some(kept) = &mut self.kept else { return };
        kept.unheld.extend(block.parent);
        kept.blocks.insert(block.sequence, block);
    }

    /// The held blocks are complete.
    pub(crate) fn end_held(&mut self) -> ReadingProgress {
        match &mut self.kept {
            Some(kept) if !kept.unheld.is_empty() => {
                kept.has_begun = true;
                ReadingProgress::More
            }
            _ => ReadingProgress::Complete,
        }
    }

    /// Replaces the blocks read so far by all blocks of the rank.
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
