//! Explanation of why a prefix that the primary group holds is not usable.

use super::SecondaryGroup;
use crate::Tier;

/// Cut of a prefix: its primary group holds more blocks than the secondary groups of the rank can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Number of leading blocks that are usable.
    pub usable: u32,
    /// Number of leading blocks that an engine would look up first: all held blocks, or one less where it must
    /// compute the prompt's last block anyway.
    pub wanted: u32,
    /// Groups that cannot use these blocks, by number; at least one.
    pub shortfalls: Vec<Shortfall>,
}

/// Blocks of a prefix that a secondary group needs and lacks. A group whose blocks end elsewhere than the prefix looks up the
/// longest part of it that ends with one of its blocks, and may lack none of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// The group.
    pub group: SecondaryGroup,
    /// Number of needed blocks of the group that it lacks.
    pub missing_count: u32,
    /// The first [`MISSING_LISTED_MAX`] of them, in order of position.
    pub missing: Vec<MissingBlock>,
}

/// A block that a group needs and does not hold in the tiers in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingBlock {
    /// Its position in the query, from zero; of a larger block of the group, the position of the last block that it spans; of a
    /// smaller one, the position of the block that it is a part of.
    pub position: u32,
    /// Number of the block among the parts of that block, from zero. Zero for blocks that are not smaller.
    pub part: u32,
    /// The slower tier in which the group holds it, if any.
    pub held_in: Option<Tier>,
}

/// Limit of listed missing blocks of one group: its window can span a whole long prompt.
pub const MISSING_LISTED_MAX: usize = 64;
