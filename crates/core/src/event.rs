//! What one worker rank says about its cache.

use crate::{LocalHash, SequenceHash, Tier};

/// A block as an event names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The engine's name of the block.
    pub sequence: SequenceHash,
    /// What the block contains.
    pub local: LocalHash,
}

/// How many copies a removal takes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovedCopies {
    /// One: the engine tells of each physical copy.
    One,
    /// Every one in the tier: the engine tells only when the last copy is gone.
    All,
}

/// One change of one rank's cache. Events of a rank are applied in the order in which it made them.
///
/// Presence is counted: an engine may keep several physical copies of one block, each stored and
/// removed on its own, and the block is held while copies are left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockEvent {
    /// Copies of each block were stored. The blocks chain: the first follows `parent` (none at the
    /// start of a sequence), each further one follows the one before it.
    Stored {
        /// Where the copies lie.
        tier: Tier,
        /// The block before the first one; none where a sequence starts.
        parent: Option<SequenceHash>,
        /// The blocks, in sequence order.
        blocks: Vec<Block>,
        /// Copies of each: one, unless several events are told as one. Zero changes nothing.
        copies: u32,
    },
    /// A copy of each block was stored whose content and parent this rank has told before, and
    /// which it still holds somewhere: an offload to another tier names blocks by hash alone.
    Copied {
        /// Where the new copies lie.
        tier: Tier,
        /// The blocks, in any order.
        blocks: Vec<SequenceHash>,
    },
    /// Copies of each block were removed.
    Removed {
        /// Where the copies lay.
        tier: Tier,
        /// The blocks, in any order.
        blocks: Vec<SequenceHash>,
        /// How many of each.
        copies: RemovedCopies,
    },
    /// The whole cache of the rank was dropped, in every tier.
    Cleared,
}
