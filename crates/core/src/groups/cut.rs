//! Why a prefix that the indexed group holds does not count.

use super::SecondaryGroup;
use crate::Tier;

/// Where the further groups of a rank cut off a prefix that its indexed group holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Leading blocks that are usable.
    pub usable: u32,
    /// Leading blocks that an engine would look for first: all that are held, or one less where it must compute
    /// the prompt's last block anyway.
    pub wanted: u32,
    /// The groups that cannot use these, by number; one at least.
    pub shortfalls: Vec<Shortfall>,
}

/// What a further group lacks of a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// The group.
    pub group: SecondaryGroup,
    /// Blocks that it lacks of those that it needs.
    pub missing_count: u32,
    /// The first [`MISSING_LISTED_MAX`] of them, the one furthest to the front first.
    pub missing: Vec<MissingBlock>,
}

/// A block that a group needs and does not hold in the tiers that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingBlock {
    /// Its position in the query, from zero.
    pub position: u32,
    /// The slower tier in which the group holds it, if it does.
    pub held_in: Option<Tier>,
}

/// Missing blocks that are listed of one group: its window can be all of a long prompt.
pub const MISSING_LISTED_MAX: usize = 64;
