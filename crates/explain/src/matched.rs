//! What a rank's match is once its further cache groups have had their say.

use flash_indexer_core::groups::{Cut, MissingBlock, SecondaryGroup, Shortfall};
use flash_indexer_core::{LocalHash, PerTier, SequenceHash, Tier};

use super::walk::Walk;

/// A rank's part of a prompt: what its indexed group holds, and what others cut off of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ExplainedMatch {
    pub(super) walk: Walk,
    /// When a tier and the faster ones are used together; nothing where every group can use all that the indexed
    /// one holds.
    pub(super) lacks: PerTier<Option<GroupShortfall>>,
}

/// Why the further groups of a rank cannot use all that its indexed group holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupShortfall {
    /// Leading blocks that are usable.
    pub usable: usize,
    /// The engine's name of the first one that is not.
    pub sequence: Option<SequenceHash>,
    /// Leading blocks that the indexed group holds.
    pub held: usize,
    /// Leading blocks that an engine would look for first.
    pub wanted: usize,
    /// The groups that lack some of what they need of these.
    pub groups: Vec<LimitingGroup>,
}

/// A group that cannot use a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitingGroup {
    /// The group.
    pub group: SecondaryGroup,
    /// Missing blocks, also those that are not listed.
    pub missing_count: u32,
    /// The first ones.
    pub missing: Vec<MissingGroupBlock>,
}

/// A block that a group needs and does not hold in the tiers that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingGroupBlock {
    /// Position in the prompt, in blocks.
    pub position: usize,
    /// Local hash of the block.
    pub local: Option<LocalHash>,
    /// Sequence hash of the block, where the rank has named it.
    pub sequence: Option<SequenceHash>,
    /// The slower tier in which the group holds it, if it does.
    pub held_in: Option<Tier>,
}

impl ExplainedMatch {
    /// `cut` says where so many leading blocks of the query are cut off in tiers up to one.
    pub(super) fn new(
        mut walk: Walk,
        query: &[LocalHash],
        cut: impl Fn(&[LocalHash], u32, Tier) -> Option<Cut>,
    ) -> Self {
        let path = std::mem::take(&mut walk.path);
        let lacks = Tier::ALL.map(|tier| {
            let held = walk.blocks[tier];
            let cut = cut(query, u32::try_from(held).ok()?, tier)?;
            Some(GroupShortfall::new(cut, held, query, &path))
        });
        Self { walk, lacks: PerTier(lacks) }
    }

    /// Leading blocks that can be used with a tier and the faster ones.
    pub(super) fn usable(&self) -> PerTier<usize> {
        let usable = |tier| self.lacks[tier].as_ref().map_or(self.walk.blocks[tier], |lack| lack.usable);
        PerTier(Tier::ALL.map(usable))
    }

    /// The same with all tiers.
    pub(super) fn longest(&self) -> usize {
        self.usable()[Tier::External]
    }
}

impl GroupShortfall {
    fn new(Cut { usable, wanted, shortfalls }: Cut, held: usize, query: &[LocalHash], path: &[SequenceHash]) -> Self {
        let usable = usable as usize;
        let block = |MissingBlock { position, held_in }| {
            let position = position as usize;
            let (local, sequence) = (query.get(position).copied(), path.get(position).copied());
            MissingGroupBlock { position, local, sequence, held_in }
        };
        let group = |Shortfall { group, missing_count, missing }| {
            let missing = missing.into_iter().map(block).collect();
            LimitingGroup { group, missing_count, missing }
        };
        let groups = shortfalls.into_iter().map(group);
        Self { usable, sequence: path.get(usable).copied(), held, wanted: wanted as usize, groups: groups.collect() }
    }
}
