//! Events: changes of one worker rank's cache.

use crate::{LocalHash, SequenceHash, Tier};

/// A block in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Engine-given id of the block.
    pub sequence: SequenceHash,
    /// Content id of the block.
    pub local: LocalHash,
}

/// Number of copies that a removal affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovedCopies {
    /// One copy: the engine publishes an event for each physical copy.
    One,
    /// All copies in the tier: the engine publishes an event only for the last copy.
    All,
    /// All copies in the tier but this many: the engine publishes how many are left.
    AllBut(u32),
}

impl RemovedCopies {
    /// Remaining copies of a block that has `held` copies, at least one. The engine's own count takes precedence.
    #[must_use]
    pub const fn left(self, held: u32) -> u32 {
        match self {
            Self::One => held.saturating_sub(1),
            Self::All => 0,
            Self::AllBut(left) => left,
        }
    }
}

/// One change of one rank's cache. Events of a rank are applied in the order in which the engine made them.
///
/// Blocks are reference-counted: an engine may keep several physical copies of one block, each stored and removed
/// separately, and the rank holds the block while at least one copy is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockEvent {
    /// Copies of each block were stored. The blocks form a chain: the first follows `parent` (none at the start of a
    /// sequence), and each other block follows the one before it.
    Stored {
        /// Tier of the copies.
        tier: Tier,
        /// The block before the first one; none at the start of a sequence.
        parent: Option<SequenceHash>,
        /// The blocks, in sequence order.
        blocks: Vec<Block>,
        /// Copies of each block: one, unless several events were combined. Zero changes nothing.
        copies: u32,
    },
    /// One copy of each block was stored in another tier. The rank has stored each block with its parent and local
    /// hash before, and still holds it somewhere: an offload identifies blocks by sequence hash alone.
    Copied {
        /// Tier of the new copies.
        tier: Tier,
        /// The blocks, in any order.
        blocks: Vec<SequenceHash>,
    },
    /// Copies of each block were removed.
    Removed {
        /// Tier of the removed copies.
        tier: Tier,
        /// The blocks, in any order.
        blocks: Vec<SequenceHash>,
        /// Number of copies of each block.
        copies: RemovedCopies,
    },
    /// The rank's whole cache was dropped, in every tier.
    Cleared,
}
