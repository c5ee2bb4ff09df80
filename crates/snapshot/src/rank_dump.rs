//! State of one rank as a dump contains it.

use flash_indexer_core::groups::GroupChange;
use flash_indexer_core::hashing::Salt;
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{BlockEvent, DpRank, SequenceHash};
use flash_indexer_types::{InstanceId, RankPosition};
use flash_indexer_wire::{KnownGroup, RecentBlock};

/// Blocks that one rank holds, and the position of its stream at that moment.
#[derive(Debug, Clone)]
pub struct RankDump {
    /// The instance.
    pub instance: InstanceId,
    /// The data-parallel rank.
    pub dp_rank: DpRank,
    /// Position in the rank's stream at which `events` are the exact state; none for a rank without a listener.
    pub position: Option<RankPosition>,
    /// Stored events that fill an empty index with the same blocks. Parents precede children. An event of zero copies has blocks that the
    /// rank no longer holds. Its index keeps them for their descendants.
    pub events: Vec<BlockEvent>,
    /// Stored events for the secondary cache groups of a hybrid model's rank. Each group has at least one event.
    pub secondary: Vec<GroupChange>,
    /// Cache groups that the rank's stream has named; none if unknown.
    pub named_groups: Option<Vec<KnownGroup>>,
    /// Salts that child blocks inherit, by the sequence hash of the parent.
    pub salts: KeyedMap<SequenceHash, Salt>,
    /// Decoder state: recent blocks, held or not, that the engine may name again by sequence hash only. None for an engine
    /// that does not offload.
    pub contents: Option<Vec<RecentBlock>>,
}
