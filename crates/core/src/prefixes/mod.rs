//! What one rank holds, told by our own hashes of prefixes instead of the engine's names.
//!
//! Whoever knows a prompt can compute the hashes of its prefixes, and needs neither names nor parents to look
//! them up: what is told here can lie in a store of keys and values that many share.

mod nodes;

use crate::designs::{Lookup, NamingLimits, RankWriter};
use crate::{Applied, BlockEvent, LocalHash, SequenceHash, Tier};

use nodes::{NodeId, Nodes};

/// A prefix of some blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// Content of its first block.
    pub first: LocalHash,
    /// Our own sequence hash of its last block ([`hashing::sequence_hashes`](crate::hashing::sequence_hashes)).
    pub hash: SequenceHash,
}

/// The prefixes that one rank holds: each with the slowest tier that must be used to have all of it.
///
/// A rank's answer to a query for a tier is the number of leading prefixes whose slowest tier is that one or a faster.
/// It is exact, as [`oracle::Oracle`](crate::oracle::Oracle) says it, twins and holes included.
///
/// # Closed under prefixes
///
/// Whenever a prefix is held with the help of a tier, all shorter ones are, with no slower one. So *one* held prefix
/// tells that everything before it was held at the same moment, and whoever sees some prefixes as they
/// were at one moment and others as they were at another finds no more than was right at one of them.
///
/// # Cost
///
/// About 300 bytes a block. An event costs its blocks, and where a block is removed or comes back from which others
/// follow, those as well: engines let go of the ends first.
#[derive(Debug, Default)]
pub struct HeldPrefixes {
    lookup: Lookup<NodeId>,
    nodes: Nodes,
}

impl HeldPrefixes {
    /// Applies one event of the rank. `changed` gets every prefix of which it may have changed how it is held,
    /// some more than once; of a clear none, because all of them are gone.
    pub fn apply(&mut self, event: &BlockEvent, changed: &mut impl FnMut(Prefix)) -> Applied {
        if *event == BlockEvent::Cleared {
            let removed = self.lookup.size().blocks as u64;
            *self = Self::default();
            return Applied { removed, ..Applied::default() };
        }
        let placement = self.nodes.reporting_to(changed);
        RankWriter { placement, names: &mut self.lookup, limits: NamingLimits::default() }.apply(event)
    }

    /// The slowest tier that must be used to have the whole prefix; none if it is not held.
    #[must_use]
    pub fn slowest_tier(&self, prefix: SequenceHash) -> Option<Tier> {
        self.nodes.slowest_tier(prefix)
    }

    /// Every prefix that is held, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Prefix> {
        self.nodes.held()
    }

    /// Blocks that the rank holds, in whatever tier, also those that do not count.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.lookup.size().blocks
    }
}
