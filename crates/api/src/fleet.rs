//! `/store`, `/discovery`, `/peers`, `/register_peer`, `/deregister_peer`, `/digest` and `/dump`.

use flash_indexer_types::hashes::HashForm;
use flash_indexer_types::{InstanceId, SourceState, TargetState, Trust};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::ModelScope;

flash_indexer_types::named_enum! {
    /// State of the shared store in an answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum StoreStatus {
        /// The store answers, and answers have remote ranks.
        Ok = "ok",
        /// The store did not answer in time.
        Unavailable = "unavailable",
    }
}

/// State of the shared store.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct StoreState {
    /// Address of the store.
    pub url: String,
    /// Whether the store answers.
    pub status: StoreStatus,
    /// The last error; null if there was none.
    pub last_error: Option<String>,
    /// This replica.
    pub publisher: String,
    /// Ranks of this replica that are published completely.
    pub published_ranks: usize,
    /// Ranks of this replica that are not published completely yet.
    pub unfinished_ranks: usize,
    /// Changes that wait to be written.
    pub waiting_changes: usize,
    /// Published ranks of all replicas.
    pub ranks: Vec<PublishedRank>,
}

/// Published rank of any replica.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PublishedRank {
    /// The instance.
    pub instance_id: InstanceId,
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// The model.
    pub model_name: String,
    /// The tenant.
    pub tenant_id: String,
    /// Tokens in a block.
    pub block_size: u32,
    /// Trust state of the rank.
    pub trust: Trust,
    /// Blocks of the rank.
    pub blocks: usize,
    /// Replica that publishes the rank.
    pub publisher: String,
}

/// Discovery source.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DiscoverySource {
    /// Name of the source.
    pub source: String,
    /// Whether it answers.
    pub state: SourceState,
    /// Milliseconds since its last answer; null before the first one.
    pub last_success_ms_ago: Option<u64>,
    /// Its current failure.
    pub error: Option<String>,
    /// Unusable parts of its last report.
    pub problems: Vec<String>,
    /// Ranks that it names.
    pub targets: Vec<DiscoveryTarget>,
}

/// Rank that a discovery source names.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DiscoveryTarget {
    /// The instance.
    pub instance_id: InstanceId,
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// The model.
    pub model_name: String,
    /// The tenant.
    pub tenant_id: String,
    /// Endpoint of the rank.
    pub endpoint: String,
    /// State of the target.
    pub state: TargetState,
    /// Why the rank is not registered as the source names it, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Body of `POST /register_peer` and `/deregister_peer`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(expecting = "a JSON object")]
pub struct PeerRequest {
    /// URL of the peer: `http://host:port`.
    pub url: String,
}

/// Query string of `GET /digest`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DigestParameters {
    /// The model.
    pub model_name: String,
    /// The tenant; `default` if absent.
    pub tenant_id: Option<String>,
    /// The instance.
    pub instance_id: String,
    /// Data-parallel rank.
    #[serde(default)]
    pub dp_rank: u32,
    /// Message of the rank's stream after which the digest is taken; now if absent.
    pub at_sequence: Option<u64>,
    /// Longest wait for that message, in milliseconds.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Query string of `GET /dump`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DumpParameters {
    /// Model and tenant; all if absent.
    #[serde(flatten)]
    #[param(ignore)]
    pub scope: ModelScope,
    /// The instance; all if absent.
    pub instance_id: Option<String>,
    /// Form of hashes in the dump.
    #[serde(default)]
    #[param(inline)]
    pub hashes: HashForm,
}
