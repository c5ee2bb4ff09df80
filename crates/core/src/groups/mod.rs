//! Cache groups: the caches that a hybrid model keeps side by side for layers of different kinds.
//!
//! ```text
//!  blocks of one sequence     1  2  3  4  5  6  7  8
//!  full attention, primary    ■  ■  ■  ■  ■  ■  ■       sequence hashes, parents, local hashes
//!  window of two blocks       ■  ■  ·  ·  ■  ■  ·       sequence hashes only; blocks before the window are dropped
//!  usable                                    6          the first 6: all of them in the primary group, and the last two
//! ```
//!
//! The blocks of a secondary group may be larger than those of the primary group, which are the blocks of the index. Such a
//! block has the sequence hash of the last block of the index that it spans, and a prefix counts only if it ends with one.
//!
//! They may be smaller as well. The last one in a block of the index has that block's sequence hash; the others have sequence
//! hashes that the index does not have. A *link* leads from each block to the one before it, so the blocks that a window needs
//! are found backward from the end of a prefix. Neither a query's tokens nor another table of prefixes is needed.
//!
//! ```text
//!  blocks of the index        │     1     │     2     │
//!  a group with four parts    │ ·  ·  ■  ■│ ·  ■  ■  ■│    links: ■ ← ■ ← ■
//! ```

mod blocks;
mod cut;
mod held_prefixes;
mod index;
mod links;
mod rank;
mod size;

pub use blocks::{GroupBlock, GroupPart, GroupReading};
pub use cut::{Cut, MISSING_LISTED_MAX, MissingBlock, Shortfall};
pub use index::GroupedIndex;
pub use links::RELEASED_LINKS_MAX;
pub use size::GroupBlockSize;

use crate::hashing::BlockSize;
use crate::{BlockEvent, HeldBlock, RemovedCopies, SequenceHash, Tier};

/// Number of a cache group inside its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// The blocks of a prefix that a cache group must hold for the prefix to be usable, in blocks of the group's own size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionWindow {
    /// All blocks: full attention.
    Full,
    /// This many blocks at the end, or all blocks of a shorter prefix: a sliding window, or a recurrent state.
    LastBlocks(u32),
}

impl AttentionWindow {
    /// The window of a sliding-window attention over `tokens` tokens, including the token that is computed next.
    #[must_use]
    pub const fn sliding_window(tokens: u32, block_size: BlockSize) -> Self {
        Self::LastBlocks(tokens.saturating_sub(1).div_ceil(block_size.tokens()))
    }

    /// The window that covers this one, which is in blocks of the registered size, with blocks of another size. Exact for a
    /// window that was rounded up from tokens, if the blocks are not smaller.
    #[must_use]
    pub const fn with_size(self, size: GroupBlockSize) -> Self {
        match self {
            Self::Full => Self::Full,
            Self::LastBlocks(blocks) => Self::LastBlocks(blocks.div_ceil(size.span()).saturating_mul(size.parts())),
        }
    }

    /// Blocks needed at the end of a prefix of `prefix` blocks, all of the group's own size.
    pub(crate) fn blocks_of(self, prefix: u32) -> u32 {
        match self {
            Self::Full => prefix,
            Self::LastBlocks(blocks) => blocks.min(prefix),
        }
    }
}

/// A cache group of a rank besides the primary one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecondaryGroup {
    /// Number of the group.
    pub id: GroupId,
    /// Blocks that it must hold.
    pub window: AttentionWindow,
    /// Size of its blocks.
    pub size: GroupBlockSize,
}

impl SecondaryGroup {
    /// The longest prefix of at most `prefix` blocks of the index that ends with a block of the group.
    pub(crate) const fn aligned(&self, prefix: u32) -> u32 {
        prefix - prefix % self.size.span()
    }

    /// The blocks that the group needs for a prefix of `prefix` blocks of the index, which ends with a block of the group, in
    /// ascending order: the last parts of each block of the index at whose end a block of the group ends.
    pub(crate) fn needed(&self, prefix: u32) -> impl DoubleEndedIterator<Item = NeededParts> + use<> {
        let (step, parts) = (self.size.span(), self.size.parts());
        let blocks = (prefix / step).saturating_mul(parts);
        let needed = self.window.blocks_of(blocks);
        let first = (blocks - needed) / parts;
        (first..prefix / step).map(move |before| {
            let after = (prefix / step - before - 1) * parts;
            NeededParts { end: (before + 1) * step, count: (needed - after.min(needed)).min(parts) }
        })
    }

    /// Whether the group needs blocks that only links show.
    #[must_use]
    pub fn needs_links(&self) -> bool {
        self.size.is_finer() && !matches!(self.window, AttentionWindow::LastBlocks(0 | 1))
    }
}

/// Blocks of a group that a prefix needs at the end of a block of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeededParts {
    /// Number of blocks of the index up to the end.
    pub(crate) end: u32,
    /// Number of blocks of the group before the end, at least one: more than one only if they are smaller than blocks of the
    /// index.
    pub(crate) count: u32,
}

/// One change of a rank's [`SecondaryGroup`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupChange {
    /// The group.
    pub group: SecondaryGroup,
    /// The change.
    pub event: GroupEvent,
}

/// Change of a secondary cache group. It identifies blocks by sequence hash alone; events of the primary group,
/// before or after, give their local hashes and parents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupEvent {
    /// Copies of each block were stored.
    Stored {
        /// Tier of the copies.
        tier: Tier,
        /// The blocks, in any order; an empty list only announces the group.
        blocks: Vec<SequenceHash>,
        /// Copies of each block. Zero changes nothing.
        copies: u32,
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
    /// The engine has shown which blocks precede others, held or not. Precedes the store that shows it. Without an effect in a
    /// group whose blocks are not smaller than those of the index.
    Linked(Vec<BlockLink>),
}

/// Link of a block of a cache group to the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLink {
    /// The block.
    pub block: SequenceHash,
    /// The block of the group that ends where it begins; none at the start of a sequence.
    pub before: Option<SequenceHash>,
}

/// One change of one rank's cache, in any group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankEvent {
    /// A change of the primary group, or a clear of all groups.
    Primary(BlockEvent),
    /// A change of a secondary group.
    Secondary(GroupChange),
    /// A clear of a part of the cache.
    ClearedScope(ClearScope),
}

/// Part of a rank's cache that its engine drops in one step: the blocks of some groups in some tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClearScope {
    /// The tier; every tier if there is none.
    pub tier: Option<Tier>,
    /// The groups.
    pub groups: ClearedGroups,
}

/// Cache groups that an engine clears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClearedGroups {
    /// Every group.
    All,
    /// The primary group.
    Primary,
    /// One secondary group.
    Secondary(GroupId),
}

impl ClearScope {
    /// Whether the scope includes the primary group.
    #[must_use]
    pub fn has_primary(&self) -> bool {
        !matches!(self.groups, ClearedGroups::Secondary(_))
    }

    /// Whether the scope includes a secondary group.
    #[must_use]
    pub fn has_secondary(&self, group: GroupId) -> bool {
        match self.groups {
            ClearedGroups::All => true,
            ClearedGroups::Primary => false,
            ClearedGroups::Secondary(cleared) => cleared == group,
        }
    }

    /// Tiers of the scope, fastest first.
    pub fn tiers(&self) -> impl Iterator<Item = Tier> {
        let scope = *self;
        Tier::ALL.into_iter().filter(move |&tier| scope.includes(tier))
    }

    /// Whether the scope includes a tier.
    fn includes(&self, tier: Tier) -> bool {
        self.tier.is_none_or(|cleared| cleared == tier)
    }

    /// The removals that together clear blocks of a rank's primary group, as far as the scope includes them.
    #[must_use]
    pub fn primary_removals(&self, held: &[HeldBlock]) -> Vec<RankEvent> {
        let in_scope = self.has_primary();
        let blocks = |tier| held.iter().filter(move |block| block.copies[tier] > 0).map(|block| block.sequence);
        let removal =
            |(tier, blocks)| RankEvent::Primary(BlockEvent::Removed { tier, blocks, copies: RemovedCopies::All });
        self.removed_of(in_scope, blocks).map(removal).collect()
    }

    /// The removals that together clear blocks of a secondary group, as far as the scope includes them.
    #[must_use]
    pub fn secondary_removals(&self, group: SecondaryGroup, held: &[GroupBlock]) -> Vec<RankEvent> {
        let in_scope = self.has_secondary(group.id);
        let blocks = |tier| held.iter().filter(move |block| block.copies[tier] > 0).map(|block| block.sequence);
        let removal = |(tier, blocks)| {
            let event = GroupEvent::Removed { tier, blocks, copies: RemovedCopies::All };
            RankEvent::Secondary(GroupChange { group, event })
        };
        self.removed_of(in_scope, blocks).map(removal).collect()
    }

    /// The blocks of each tier of the scope that has any, if it includes their group.
    fn removed_of<I: Iterator<Item = SequenceHash>>(
        &self,
        in_scope: bool,
        blocks: impl Fn(Tier) -> I,
    ) -> impl Iterator<Item = (Tier, Vec<SequenceHash>)> {
        let by_tier = self.tiers().filter(move |_| in_scope).map(move |tier| (tier, blocks(tier).collect::<Vec<_>>()));
        by_tier.filter(|(_, blocks)| !blocks.is_empty())
    }
}

/// Limit of secondary groups of one rank; real models have a handful.
pub const GROUPS_MAX: usize = 16;

/// Limit of blocks of one rank in one secondary group.
pub const GROUP_BLOCKS_MAX: usize = 1 << 22;

/// Tiers in which each secondary group holds a block: four bits for each group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct TierMask(u64);

const TIERS: usize = Tier::ALL.len();
const _: () = assert!(GROUPS_MAX * TIERS <= u64::BITS as usize);

impl TierMask {
    fn insert(&mut self, group: usize, tier: Tier) {
        self.0 |= 1 << (group * TIERS + tier as usize);
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Number of the fastest tier in which the group holds the block; the number of tiers if there is none.
    fn fastest(self, group: usize) -> usize {
        let tiers = self.0 >> (group * TIERS) & ((1 << TIERS) - 1);
        (tiers | 1 << TIERS).trailing_zeros() as usize
    }

    /// The same, as a tier.
    fn fastest_tier(self, group: usize) -> Option<Tier> {
        Tier::ALL.get(self.fastest(group)).copied()
    }
}
