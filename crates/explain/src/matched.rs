//! The match of a rank after its secondary cache groups have shortened it.

use flash_indexer_core::groups::{Cut, MissingBlock, SecondaryGroup, Shortfall};
use flash_indexer_core::{LocalHash, PerTier, SequenceHash, Tier};

use crate::walk::Walk;

/// The match of one rank: the blocks its primary cache group holds, and the shortfalls of its secondary groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ExplainedMatch {
    pub(super) walk: Walk,
    /// Shortfalls when a tier and the faster ones are used together. None if every group can use all blocks of the
    /// primary group.
    pub(super) shortfalls: PerTier<Option<GroupShortfall>>,
}

/// A match that secondary cache groups shorten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupShortfall {
    /// Leading blocks that are usable.
    pub usable: usize,
    /// Sequence hash of the first block that is not usable.
    pub sequence: Option<SequenceHash>,
    /// Leading blocks that the primary group holds.
    pub held: usize,
    /// Leading blocks that an engine would try to use first.
    pub wanted: usize,
    /// Groups that miss blocks they need to use the wanted blocks.
    pub groups: Vec<LimitingGroup>,
}

/// A group that cannot use a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitingGroup {
    /// The group.
    pub group: SecondaryGroup,
    /// Number of missing blocks, listed or not.
    pub missing_count: u32,
    /// The first missing blocks.
    pub missing: Vec<MissingGroupBlock>,
}

/// A block that a group needs and does not hold in the tiers in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingGroupBlock {
    /// Position in the prompt, in blocks.
    pub position: usize,
    /// Number of a block that is smaller than the registered ones, among the parts of the block at this position, from zero.
    pub part: u32,
    /// Local hash of the block.
    pub local: Option<LocalHash>,
    /// Sequence hash of the block, if the rank has published it.
    pub sequence: Option<SequenceHash>,
    /// The slower tier in which the group holds it, if it does.
    pub held_in: Option<Tier>,
}

impl ExplainedMatch {
    /// Creates the match of a walk. `cut(query, blocks, tier)` returns how the secondary groups shorten a match of
    /// `blocks` blocks in the tiers up to `tier`.
    pub(super) fn new(
        mut walk: Walk,
        query: &[LocalHash],
        cut: impl Fn(&[LocalHash], u32, Tier) -> Option<Cut>,
    ) -> Self {
        let path = std::mem::take(&mut walk.path);
        let shortfalls = Tier::ALL.map(|tier| {
            let held = walk.blocks[tier];
            let cut = cut(query, u32::try_from(held).ok()?, tier)?;
            Some(GroupShortfall::new(cut, held, query, &path))
        });
        Self { walk, shortfalls: PerTier(shortfalls) }
    }

    /// Usable leading blocks when a tier and the faster ones are used together.
    pub(super) fn usable(&self) -> PerTier<usize> {
        let usable = |tier| self.shortfalls[tier].as_ref().map_or(self.walk.blocks[tier], |shortfall| shortfall.usable);
        PerTier(Tier::ALL.map(usable))
    }

    /// Usable leading blocks when all tiers are used together.
    pub(super) fn longest(&self) -> usize {
        self.usable()[Tier::External]
    }
}

impl GroupShortfall {
    fn new(Cut { usable, wanted, shortfalls }: Cut, held: usize, query: &[LocalHash], path: &[SequenceHash]) -> Self {
        let usable = usable as usize;
        let block = |parts: u32, MissingBlock { position, part, held_in }| {
            let position = position as usize;
            // A part that ends inside the block has its own hashes.
            let is_whole = part + 1 == parts;
            let local = query.get(position).copied().filter(|_| is_whole);
            let sequence = path.get(position).copied().filter(|_| is_whole);
            MissingGroupBlock { position, part, local, sequence, held_in }
        };
        let group = |Shortfall { group, missing_count, missing }| {
            let missing = missing.into_iter().map(|missing| block(group.size.parts(), missing)).collect();
            LimitingGroup { group, missing_count, missing }
        };
        let groups = shortfalls.into_iter().map(group);
        Self { usable, sequence: path.get(usable).copied(), held, wanted: wanted as usize, groups: groups.collect() }
    }
}
