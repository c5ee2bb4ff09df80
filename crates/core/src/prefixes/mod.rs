//! Blocks of one rank by prefix hash instead of the engine's sequence hash.
//!
//! A client that has a prompt can compute its prefix hashes and look them up without sequence hashes and parents. So
//! a shared key-value store can hold them.

mod nodes;

use crate::rank_blocks::{Lookup, RankBlockLimits, RankWriter};
use crate::{AppliedChanges, BlockEvent, LocalHash, SequenceHash, Tier};

use nodes::{NodeId, Nodes};

/// A prefix of a sequence, identified by its prefix hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// Local hash of its first block.
    pub first: LocalHash,
    /// Prefix hash of its last block ([`hashing::sequence_hashes`](crate::hashing::sequence_hashes)).
    pub hash: SequenceHash,
}

/// The prefixes that one rank holds, each with the slowest tier needed to hold all of it.
///
/// A rank's answer to a query for a tier is the number of leading prefixes whose slowest tier is that tier or a
/// faster one. The answer equals that of [`oracle::Oracle`](crate::oracle::Oracle), with twins and gaps included.
///
/// # Closed under prefixes
///
/// If a prefix is held with a certain slowest tier, all shorter ones are held with no slower tier. So a single held
/// prefix proves that all shorter ones were held at the same moment. A reader that sees some prefixes as of one
/// moment and others as of another finds at most the depth that was true at one of the moments.
///
/// # Cost
///
/// About 300 bytes for each block. An event costs its blocks. When a block with descendants is removed or stored
/// again, its descendants are updated too; engines evict the ends of chains first, so that is rare.
#[derive(Debug, Default)]
pub struct HeldPrefixes {
    lookup: Lookup<NodeId>,
    nodes: Nodes,
}

impl HeldPrefixes {
    /// Applies one event of the rank. Calls `changed` with every prefix whose state may have changed, some more than
    /// once. A clear reports none, because all of them are gone.
    pub fn apply(&mut self, event: &BlockEvent, changed: &mut impl FnMut(Prefix)) -> AppliedChanges {
        if *event == BlockEvent::Cleared {
            let removed = self.lookup.size().blocks as u64;
            *self = Self::default();
            return AppliedChanges { removed, ..AppliedChanges::default() };
        }
        let placement = self.nodes.reporting_to(changed);
        RankWriter { placement, names: &mut self.lookup, limits: RankBlockLimits::default() }.apply(event)
    }

    /// The slowest tier needed to hold the whole prefix; none if it is not held.
    #[must_use]
    pub fn slowest_tier(&self, prefix: SequenceHash) -> Option<Tier> {
        self.nodes.slowest_tier(prefix)
    }

    /// Every held prefix, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Prefix> {
        self.nodes.held()
    }

    /// Number of blocks that the rank holds in any tier, including waiting ones and those after gaps.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.lookup.size().blocks
    }
}
