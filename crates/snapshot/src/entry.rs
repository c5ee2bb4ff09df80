//! Entries of a dump, as a reader passes them to a sink.

use flash_indexer_core::groups::{GroupChange, GroupEvent};
use flash_indexer_core::hashing::{BlockSize, Salt};
use flash_indexer_core::{Block, BlockEvent, DpRank, SequenceHash, Tier};
use flash_indexer_types::{InstanceId, ModelKey};
use flash_indexer_wire::Age;

use super::error::Rejection;
use super::event::{RecentBlocks, UnheldAncestors};
use super::record::RankRecord;
use super::tally::Tally;

/// Receiver of a dump while it is read.
pub trait DumpSink {
    /// Receives a rank's record: before its blocks in the form of lines, after them in an object, never from other indexers.
    ///
    /// # Errors
    ///
    /// Returns the reason if the sink rejects the dump.
    fn rank(&mut self, record: RankRecord) -> Result<(), Rejection>;

    /// Receives blocks of a rank. In the primary cache group, parents precede children.
    ///
    /// # Errors
    ///
    /// Returns the reason if the sink rejects the dump.
    fn entry(&mut self, rank: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection>;
}

/// Rank of an entry.
#[derive(Debug, Clone, Copy)]
pub struct RankName<'a> {
    /// Model and tenant.
    pub key: &'a ModelKey,
    /// Size of the model's blocks.
    pub block_size: BlockSize,
    /// The instance.
    pub instance: &'a InstanceId,
    /// The data-parallel rank.
    pub dp_rank: DpRank,
}

/// Content of one event of a dump.
#[derive(Debug)]
pub enum DumpEntry {
    /// Blocks of the primary cache group, the only one of most models.
    Blocks(StoredBlocks),
    /// Blocks of a secondary cache group, or links between its blocks after them.
    Secondary(GroupChange),
    /// Recent blocks that the rank no longer holds, for the decoder state.
    Recent(RecentBlocks),
    /// Removed blocks that the rank's index keeps for their descendants.
    Kept(UnheldAncestors),
}

impl DumpEntry {
    /// Number of blocks in the entry.
    #[must_use]
    pub fn block_count(&self) -> usize {
        match self {
            Self::Blocks(stored) => stored.blocks.len(),
            Self::Secondary(GroupChange { event: GroupEvent::Stored { blocks, .. }, .. }) => blocks.len(),
            Self::Secondary(_) => 0,
            Self::Recent(recent) => recent.blocks.len(),
            Self::Kept(kept) => kept.blocks.len(),
        }
    }
}

/// Chain of blocks that a rank holds: each block is the parent of the next.
#[derive(Debug)]
pub struct StoredBlocks {
    /// Tier of the copies.
    pub tier: Tier,
    /// Parent of the first block; none at the start of a sequence.
    pub parent: Option<SequenceHash>,
    /// Reference count of each block.
    pub copies: u32,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// Salt that the blocks inherit.
    pub salt: Option<Salt>,
    /// Age of the blocks in the decoder state, if they are in it.
    pub remembered: Option<Age>,
}

impl From<StoredBlocks> for BlockEvent {
    fn from(stored: StoredBlocks) -> Self {
        let StoredBlocks { tier, parent, copies, blocks, salt: _, remembered: _ } = stored;
        Self::Stored { tier, parent, blocks, copies }
    }
}

/// Totals of a complete dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DumpSummary {
    /// Ranks with a record or a block.
    pub ranks: u64,
    /// All blocks.
    pub holds: Tally,
}
