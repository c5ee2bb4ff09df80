//! State of one rank, as a dump carries it.

use flash_indexer_core::groups::GroupChange;
use flash_indexer_core::hashing::Salt;
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{BlockEvent, DpRank, SequenceHash};
use flash_indexer_types::{InstanceId, Position};
use flash_indexer_wire::{KnownGroup, RecentBlock};

/// What one rank holds, and where its stream stood at that moment.
#[derive(Debug, Clone)]
pub struct RankDump {
    /// The instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: DpRank,
    /// The place in the rank's stream up to which `events` tell it, no more and no less; none for a rank
    /// that nobody listens to.
    pub position: Option<Position>,
    /// Stored events that make an empty index know the same; parents come before children.
    pub events: Vec<BlockEvent>,
    /// The same for the further cache groups of a rank of a hybrid model; each has one event at least.
    pub further: Vec<GroupChange>,
    /// Cache groups that the rank's stream has named; none where that is not known.
    pub named_groups: Option<Vec<KnownGroup>>,
    /// Blocks whose salt is inherited by those that follow them.
    pub salts: KeyedMap<SequenceHash, Salt>,
    /// What blocks contain that the engine may name again without it, held or not; none of an engine that has not
    /// offloaded.
    pub contents: Option<Vec<RecentBlock>>,
}
