//! The state of one rank in the positional index.

use flash_indexer_core::Tier;
use flash_indexer_core::rank_blocks::Lookup;

use super::table::BlockAddress;

/// The names of one rank, and whether a query can jump with it.
#[derive(Debug, Default)]
pub(super) struct RankState {
    pub(super) names: Lookup<BlockAddress>,
    /// Number of names whose prefix has another name in this rank.
    pub(super) twins: usize,
    /// Computed after each event.
    pub(super) obstacles: JumpObstacles,
}

/// The reasons why a query cannot jump with a rank. Without one, a held block proves that the rank holds every block before
/// it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct JumpObstacles {
    /// Bit *t* is set if, in tier *t* and the faster tiers together, a held block can have a missing block before it.
    gaps: u8,
    pub(super) has_twins: bool,
}

impl JumpObstacles {
    /// Computes the obstacles from the sizes of the rank, with false positives: a rank without removed blocks has no gap
    /// over all tiers together, and is taken to have one in the faster tiers unless these hold all of its blocks or none.
    pub(super) fn of(names: &Lookup<BlockAddress>, twins: usize) -> Self {
        let mut obstacles = Self { gaps: 0, has_twins: twins > 0 };
        let size = names.size();
        for tier in Tier::ALL {
            let within = &size.by_tier.0[..=tier as usize];
            let is_whole = tier == Tier::External || within.contains(&size.blocks);
            let is_empty = within.iter().all(|&blocks| blocks == 0);
            if names.removed_count() > 0 || !(is_whole || is_empty) {
                obstacles.gaps |= 1 << tier as u8;
            }
        }
        obstacles
    }

    pub(super) fn may_have_gaps(self, tier: Tier) -> bool {
        self.gaps & (1 << tier as u8) != 0
    }
}
