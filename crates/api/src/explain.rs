//! `/explain`.

use std::collections::BTreeMap;

use flash_indexer_core::{LocalHash, Tier};
use flash_indexer_snapshot::WindowRecord;
use flash_indexer_types::hashes::{self, FormattedHash, HashForm};
use flash_indexer_types::{InstanceId, Trust, UncheckedInstanceId};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::scope::request_with_scope;

request_with_scope! {
    /// Body of `POST /explain`: one of tokens and local hashes.
    #[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
    #[serde(from = "ExplainRequestFields")]
    pub struct ExplainRequest, read as ExplainRequestFields {
        /// The tokens of the prompt.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub token_ids: Option<Vec<u32>>,
        /// The local hashes of the prompt's blocks.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub block_hashes: Option<Hashes>,
        /// The adapter, for `token_ids`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub lora_name: Option<String>,
        /// The cache salt, for `token_ids`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cache_salt: Option<String>,
        /// The instance to explain; all if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub instance_id: Option<UncheckedInstanceId>,
        /// Not for this endpoint: a prompt is sent whole. Rejected, because a part of a prompt has another explanation.
        #[serde(skip_serializing)]
        #[schema(ignore)]
        pub after: Option<IgnoredAny>,
    }
}

/// List of local hashes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(value_type = Vec<hashes::AnyHash>)]
pub struct Hashes(#[serde(with = "hashes::list")] pub Vec<LocalHash>);

/// Query string of `POST /explain`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ExplainParameters {
    /// Form of hashes in the response.
    #[serde(default)]
    #[param(inline)]
    pub hashes: HashForm,
}

/// Reasons for which each rank's match ends where it does.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The model.
    pub model_name: String,
    /// The tenant.
    pub tenant_id: String,
    /// Tokens in a block; null if no engine of the model is known.
    pub block_size: Option<u32>,
    /// Complete blocks of the prompt.
    pub blocks: usize,
    /// The registered ranks.
    pub ranks: Vec<ExplainedRank>,
    /// Instances and ranks that were unregistered recently, or are not registered.
    pub absent: Vec<AbsentRank>,
}

/// One rank's part of an explanation; matches in tokens.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ExplainedRank {
    /// The instance.
    pub instance_id: InstanceId,
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// Trust state of the rank.
    pub trust: Trust,
    /// What is missing; null while the rank is exact.
    pub last_error: Option<String>,
    /// Blocks that the rank holds of any prompt.
    pub blocks_held: usize,
    /// Match in any tier.
    pub longest_matched: u64,
    /// Match in device memory.
    pub gpu: u64,
    /// Match in device and host memory.
    pub cpu: u64,
    /// Match in device and host memory and on disk.
    pub disk: u64,
    /// Ends of the match: in device memory, and in all tiers if slower ones extend it.
    pub ends: Vec<MatchEnd>,
    /// Shared caches that hold more of the prompt than the rank, with the tokens of their match in any tier; absent if there is
    /// none. The other fields are the rank's own, without them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Option<BTreeMap<String, u64>>)]
    pub shared_caches: BTreeMap<String, u64>,
}

/// An unregistered instance, or an unregistered rank of an instance.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AbsentRank {
    /// The instance.
    pub instance_id: InstanceId,
    /// Data-parallel rank; absent if the whole instance is not registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dp_rank: Option<u32>,
    /// Why it is absent.
    pub reason: AbsenceReason,
    /// The same, as a text.
    pub why: String,
    /// Milliseconds since it was unregistered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unregistered_ms_ago: Option<u64>,
}

/// Reason for which an instance is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AbsenceReason {
    /// It was unregistered.
    Unregistered,
    /// It is not registered.
    NotRegistered,
}

/// End of a match.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MatchEnd {
    /// Position of the first block that is not matched.
    pub position: usize,
    /// Its local hash; null at the end of the prompt.
    pub local_hash: Option<FormattedHash>,
    /// Its sequence hash, if it is known.
    pub sequence_hash: Option<FormattedHash>,
    /// Why the match ends.
    pub reason: EndReason,
    /// The same, as a text.
    pub why: String,
    /// Further fields, which depend on the reason.
    #[serde(flatten)]
    pub facts: EndFacts,
}

/// Reason for which a match ends at a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Every block is held, or the prompt has no complete block.
    WholePrompt,
    /// It is held in a slower tier.
    OtherTier,
    /// Cache groups lack blocks that full attention holds.
    CacheGroups,
    /// It is missing, and blocks behind it are held.
    Hole,
    /// It was removed.
    Removed,
    /// The cache was cleared.
    Cleared,
    /// Its sequence hash was given to other content.
    NameReused,
    /// It is held under another adapter or salt.
    #[serde(rename = "other_space")]
    OtherVariant,
    /// The engine has published nothing yet.
    Cold,
    /// The index reached its memory limit.
    NoRoom,
    /// Messages are missing.
    Degraded,
    /// The engine publishes no events, and no prompt with the block was recorded for it.
    Approximate,
    /// It was never stored.
    NeverSeen,
}

/// Why an engine removed a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RemovalReason {
    /// The memory was full.
    Evicted,
    /// It was moved to a slower memory.
    Demoted,
}

/// Fields of an end beside its reason.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct EndFacts {
    /// Tier in which the block is held, or from which it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<StorageTier>,
    /// Milliseconds since its removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_ms_ago: Option<u64>,
    /// Why the engine removed it, if its events say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal_reason: Option<RemovalReason>,
    /// Milliseconds since the cache was cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared_ms_ago: Option<u64>,
    /// Last sequence number before the gap in the rank's stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_after_seq: Option<u64>,
    /// Position of the first held block behind the missing ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_again_from: Option<usize>,
    /// Where the rank holds more of the same tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_elsewhere: Option<HeldElsewhere>,
    /// The same for the rank of the fleet with the deepest match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet_holds_elsewhere: Option<FleetHoldsElsewhere>,
    /// Leading blocks that are held in the full-attention group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_attention_blocks: Option<usize>,
    /// Leading blocks that secondary groups need and do not hold completely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_blocks: Option<usize>,
    /// Cache groups that limit the match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache_groups: Vec<IncompleteGroup>,
}

/// A cache group that lacks blocks which the full-attention group holds, or whose blocks end elsewhere.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct IncompleteGroup {
    /// Number of the group.
    pub group: u32,
    /// Part of a prefix that the group needs, in blocks of the group.
    pub needs: WindowRecord,
    /// Tokens in a block of the group; absent if that is the registered size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Blocks of the group that it lacks: none if the wanted blocks end inside a larger block of the group, and it has what it
    /// needs before that.
    pub missing_blocks: u32,
    /// The first of them.
    pub missing: Vec<MissingBlock>,
}

/// A block that a cache group lacks.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MissingBlock {
    /// Position of the block in the prompt; of a larger block of the group, the last position that it spans; of a smaller one,
    /// the position of the block that it is a part of.
    pub position: usize,
    /// Number of a smaller block of the group among the parts of that block, from zero; absent for other blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// Its local hash.
    pub local_hash: Option<FormattedHash>,
    /// Its sequence hash, if it is known.
    pub sequence_hash: Option<FormattedHash>,
    /// Slower tier in which the group holds the block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<StorageTier>,
}

/// Adapter and salt under which more of the same tokens is held.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct HeldElsewhere {
    /// The adapter.
    pub lora_name: Option<String>,
    /// Whether the blocks have a salt.
    pub is_salted: bool,
    /// Leading blocks.
    pub blocks: usize,
}

/// The rank that holds most of the same tokens under another adapter or salt.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct FleetHoldsElsewhere {
    /// The instance.
    pub instance_id: InstanceId,
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// What it holds.
    #[serde(flatten)]
    pub held: HeldElsewhere,
}

flash_indexer_types::named_enum! {
    /// Storage tier of a block.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum StorageTier {
        /// Device memory.
        Device = "device",
        /// Host memory.
        HostPinned = "host_pinned",
        /// Disk.
        Disk = "disk",
        /// External store.
        External = "external",
    }
}

impl From<Tier> for StorageTier {
    fn from(tier: Tier) -> Self {
        match tier {
            Tier::Device => Self::Device,
            Tier::Host => Self::HostPinned,
            Tier::Disk => Self::Disk,
            Tier::External => Self::External,
        }
    }
}
