//! `/query` and `/query_by_hash`.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use flash_indexer_core::LocalHash;
use flash_indexer_types::{Trust, hashes};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ByRank;
use crate::scope::request_with_scope;

request_with_scope! {
    /// Body of `POST /query`.
    #[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
    #[serde(from = "TokenQueryFields")]
    pub struct TokenQuery, read as TokenQueryFields {
        /// The tokens of the prompt.
        pub token_ids: Vec<u32>,
        /// The adapter.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub lora_name: Option<String>,
        /// The cache salt.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cache_salt: Option<String>,
        /// Number of ranks with the deepest match to return.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<usize>, minimum = 1)]
        pub top_k: Option<NonZeroUsize>,
        /// Smallest match in device memory, in tokens, of a returned rank.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub min_score: Option<u64>,
        /// Cursor of an earlier answer: the prompt continues the prefix that it names.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub after: Option<hashes::AnyHash>,
    }
}

request_with_scope! {
    /// Body of `POST /query_by_hash`.
    #[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
    #[serde(from = "HashQueryFields")]
    pub struct HashQuery, read as HashQueryFields {
        /// The local hashes of the prompt's blocks.
        #[serde(with = "hashes::list")]
        #[schema(value_type = Vec<hashes::AnyHash>)]
        pub block_hashes: Vec<LocalHash>,
        /// Number of ranks with the deepest match to return.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<usize>, minimum = 1)]
        pub top_k: Option<NonZeroUsize>,
        /// Smallest match in device memory, in tokens, of a returned rank.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub min_score: Option<u64>,
        /// Cursor of an earlier answer: the prompt continues the prefix that it names.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub after: Option<hashes::AnyHash>,
    }
}

/// Response of a query. The service writes it without this type; a test compares both.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueryResponse {
    /// Matched tokens in device memory, by instance and rank.
    #[schema(value_type = BTreeMap<String, BTreeMap<String, u64>>)]
    pub scores: BTreeMap<String, ByRank<u64>>,
    /// For each leading block that any rank holds, the number of recent queries that reached it; empty if not counted.
    pub frequencies: Vec<u32>,
    /// Blocks that each rank holds of any prompt, by instance and rank.
    #[schema(value_type = BTreeMap<String, BTreeMap<String, usize>>)]
    pub tree_sizes: BTreeMap<String, ByRank<usize>>,
    /// The best match of each instance's ranks.
    pub instances: BTreeMap<String, InstanceScores>,
    /// State of the shared store; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<crate::StoreStatus>,
    /// Names a prefix of the prompt, for `after` of a later query; absent for a short prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Tokens of that prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor_tokens: Option<u64>,
}

/// The best match of an instance's ranks, in tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceScores {
    /// Match in any tier.
    pub longest_matched: u64,
    /// Match in device memory.
    pub gpu: u64,
    /// Match in device memory, by rank.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub dp: ByRank<u64>,
    /// Match in device and host memory.
    pub cpu: u64,
    /// Match in device and host memory and on disk.
    pub disk: u64,
    /// Worst trust state of the ranks.
    pub trust: Trust,
    /// Whether the index evicted blocks of a rank because of its memory limit; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Shared caches that hold more of the prompt than a rank does itself, with the tokens of their match in any tier; absent
    /// if there is none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Option<BTreeMap<String, u64>>)]
    pub shared_caches: BTreeMap<String, u64>,
}
