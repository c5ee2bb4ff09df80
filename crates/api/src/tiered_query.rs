//! `/query_tiered_by_hash`, as Dynamo's selection service queries its remote indexer.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::StorageTier;

/// Response of a tiered query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TieredQueryResponse {
    /// Tokens in a block; 0 for a model without ranks.
    pub block_size: u32,
    /// Matches by tier.
    pub tiered: TieredMatches,
    /// Ranks that match and are left out, because their instance id is not an integer; absent if there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted_ranks: usize,
}

/// Matches by tier, in blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TieredMatches {
    /// Matches in device memory.
    pub device: DeviceMatches,
    /// For each slower tier, the blocks with which it continues the match of the faster ones.
    #[schema(value_type = Vec<Vec<serde_json::Value>>)]
    pub lower_tier: Vec<(StorageTier, TierExtensions)>,
}

/// Matches in device memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceMatches {
    /// Leading blocks that each rank holds, for ranks that hold the first one.
    #[schema(value_type = Vec<Vec<serde_json::Value>>)]
    pub scores: Vec<(WorkerRankId, u32)>,
    /// For each leading block that any rank holds, the number of recent queries that reached it; empty if not counted.
    pub frequencies: Vec<u32>,
}

/// Blocks with which a tier continues matches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TierExtensions {
    /// Blocks after the match of the faster tiers, for ranks that have any.
    #[schema(value_type = Vec<Vec<serde_json::Value>>)]
    pub hits: Vec<(WorkerRankId, u32)>,
}

/// A rank of an instance whose id is an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerRankId {
    /// The instance.
    pub worker_id: u64,
    /// Its rank.
    pub dp_rank: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
