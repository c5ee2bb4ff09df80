//! Cache groups: the caches that a hybrid model keeps side by side for layers of different kinds.
//!
//! ```text
//!  blocks of one sequence     1  2  3  4  5  6  7  8
//!  full attention, indexed    ■  ■  ■  ■  ■  ■  ■       names, parents, content
//!  window of two blocks       ■  ■  ·  ·  ■  ■  ·       names only: what lies behind the window is dropped
//!  usable                                    6          the first 6: all of them, and the last two
//! ```

mod cut;
mod index;
mod places;
mod rank;

pub use cut::{Cut, MISSING_LISTED_MAX, MissingBlock, Shortfall};
pub use index::GroupedIndex;

use crate::hashing::BlockSize;
use crate::{BlockEvent, RemovedCopies, SequenceHash, Tier};

/// Number of a cache group inside its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// Which blocks of a prefix a cache group must hold for the prefix to be usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionWindow {
    /// All of them: full attention.
    Full,
    /// So many at its end, or all where the prefix has fewer: a sliding window, or a recurrent state.
    LastBlocks(u32),
}

impl AttentionWindow {
    /// What a window of so many tokens reaches. The token that is computed next is one of them.
    #[must_use]
    pub const fn sliding_window(tokens: u32, block_size: BlockSize) -> Self {
        Self::LastBlocks(tokens.saturating_sub(1).div_ceil(block_size.tokens()))
    }

    /// Blocks needed at the end of a prefix of so many.
    pub(crate) fn blocks_of(self, prefix: u32) -> u32 {
        match self {
            Self::Full => prefix,
            Self::LastBlocks(blocks) => blocks.min(prefix),
        }
    }
}

/// A cache group of a rank besides the indexed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecondaryGroup {
    /// Its number.
    pub id: GroupId,
    /// What it must hold.
    pub window: AttentionWindow,
}

/// One change of what a rank holds in a [`SecondaryGroup`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupChange {
    /// The group.
    pub group: SecondaryGroup,
    /// What changed.
    pub event: GroupEvent,
}

/// What changed in a further cache group. Blocks are named by hash alone: what they contain is told by
/// the events of the indexed group, before or after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupEvent {
    /// Copies of each block were stored.
    Stored {
        /// Where the copies lie.
        tier: Tier,
        /// The blocks, in any order; none tells that there is such a group.
        blocks: Vec<SequenceHash>,
        /// Copies of each. Zero changes nothing.
        copies: u32,
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
}

/// One change of one rank's cache, in whichever group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankEvent {
    /// In the indexed group, or in all of them: a clear.
    Indexed(BlockEvent),
    /// In another one.
    Secondary(GroupChange),
}

/// Cache groups that one rank may have besides the indexed one; real models have a handful.
pub const GROUPS_MAX: usize = 16;

/// Names that one rank may hold in one cache group besides the indexed one.
pub const GROUP_BLOCKS_MAX: usize = 1 << 22;

/// Which further groups hold a block in which tiers: four bits a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HeldIn(u64);

const TIERS: usize = Tier::ALL.len();
const _: () = assert!(GROUPS_MAX * TIERS <= u64::BITS as usize);

impl HeldIn {
    fn insert(&mut self, group: usize, tier: Tier) {
        self.0 |= 1 << (group * TIERS + tier as usize);
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Number of the fastest tier in which the group holds the block; of a tier that does not exist if
    /// it does not.
    fn fastest(self, group: usize) -> usize {
        let tiers = self.0 >> (group * TIERS) & ((1 << TIERS) - 1);
        (tiers | 1 << TIERS).trailing_zeros() as usize
    }

    /// The same, as a tier.
    fn fastest_tier(self, group: usize) -> Option<Tier> {
        Tier::ALL.get(self.fastest(group)).copied()
    }
}
