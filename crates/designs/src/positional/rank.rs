//! What the positional index keeps for one rank.

use flash_indexer_core::Tier;
use flash_indexer_core::naming::Lookup;

use super::table::Place;

/// One rank's names, and what they say about jumping.
#[derive(Debug, Default)]
pub(super) struct PositionalRank {
    pub(super) names: Lookup<Place>,
    /// Names whose prefix has another name in this rank.
    pub(super) twins: usize,
    /// As of the last event.
    pub(super) shape: Shape,
}

/// Whether a block that a rank holds proves that it holds everything before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bit *t* if in tier *t* and the faster ones together there may be a block with a missing one
    /// before it.
    holes: u8,
    has_twins: bool,
}

impl Shape {
    /// On the safe side: a rank that has no removed block to keep still may have a hole in the faster
    /// tiers, and is said to have one there unless these hold everything or nothing.
    pub(super) fn of(names: &Lookup<Place>, twins: usize) -> Self {
        let mut shape = Self { holes: 0, has_twins: twins > 0 };
        let size = names.size();
        for tier in Tier::ALL {
            let within = &size.by_tier.0[..=tier as usize];
            let is_whole = tier == Tier::External || within.contains(&size.blocks);
            let is_empty = within.iter().all(|&blocks| blocks == 0);
            if names.removed_count() > 0 || !(is_whole || is_empty) {
                shape.holes |= 1 << tier as u8;
            }
        }
        shape
    }

    pub(super) fn may_have_holes(self, tier: Tier) -> bool {
        self.holes & (1 << tier as u8) != 0
    }

    pub(super) fn has_twins(self) -> bool {
        self.has_twins
    }
}
