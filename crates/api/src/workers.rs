//! `/register`, `/unregister` and `/workers`.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use flash_indexer_core::{PerTier, Tier};
use flash_indexer_types::{
    ConnectionStatus, EngineKind, InstanceId, RemovalMeaning, SharedCacheKind, Trust, UncheckedInstanceId,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::scope::request_with_scope;
use crate::{ByRank, SuccessStatus};

request_with_scope! {
    /// Body of `POST /register`.
    #[derive(Debug, Serialize, Deserialize, ToSchema)]
    #[serde(from = "RegisterRequestFields")]
    pub struct RegisterRequest, read as RegisterRequestFields {
        /// The router's name of the instance.
        pub instance_id: UncheckedInstanceId,
        /// Endpoint at which the engine publishes, or `bound`; `vllm://host:port` for the gRPC server of an engine of vLLM, which names
        /// the endpoints of its ranks. Absent if `events` is `none`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub endpoint: Option<String>,
        /// Source of the engine's events; `published` if absent.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::by_name::by_name")]
        pub events: Option<Events>,
        /// Blocks that the cache of an engine without events has room for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<usize>, minimum = 1)]
        pub cache_blocks: Option<NonZeroUsize>,
        /// Tokens in a block. An engine of vLLM whose gRPC server is registered names them itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(minimum = 1)]
        pub block_size: Option<u32>,
        /// Data-parallel rank; 0 if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub dp_rank: Option<u32>,
        /// Endpoint at which the engine replays messages.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replay_endpoint: Option<String>,
        /// Adapter of events that name none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub lora_name: Option<String>,
        /// Kind of the engine; detected if absent.
        #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::by_name::by_name")]
        pub engine: Option<EngineKind>,
        /// Meaning of the engine's removals.
        #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::by_name::by_name")]
        pub removal: Option<RemovalMeaning>,
        /// Whether requests use SGLang's `extra_key`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub extra_keys: Option<bool>,
        /// `node` or `pool` for a shared cache, whose id begins with the kind and a colon; `instance` if absent.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::by_name::by_name")]
        pub kind: Option<WorkerKind>,
        /// Ids of the shared caches from which the engine loads blocks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(max_items = 8)]
        pub shared_caches: Option<Vec<UncheckedInstanceId>>,
    }
}

/// Response of `POST /register`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Registered {
    /// `ok`.
    pub status: SuccessStatus,
    /// Fields of the request that have no meaning and were ignored, the first few of them; absent if there are none. One may be
    /// misspelt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 8)]
    pub ignored_fields: Vec<String>,
}

/// Kind of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkerKind {
    /// An engine instance.
    Instance,
    /// The cache of one host.
    Node,
    /// A store that several hosts use.
    Pool,
}

impl From<Option<SharedCacheKind>> for WorkerKind {
    fn from(kind: Option<SharedCacheKind>) -> Self {
        match kind {
            None => Self::Instance,
            Some(SharedCacheKind::Node) => Self::Node,
            Some(SharedCacheKind::Pool) => Self::Pool,
        }
    }
}

/// Source of an engine's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Events {
    /// The engine publishes them at its endpoint.
    Published,
    /// It publishes none. The index knows the instance from routing decisions: `POST /predict`, or `record` in a score request.
    None,
}

request_with_scope! {
    /// Body of `POST /unregister`.
    #[derive(Debug, Serialize, Deserialize, ToSchema)]
    #[serde(from = "UnregisterRequestFields")]
    pub struct UnregisterRequest, read as UnregisterRequestFields {
        /// The instance.
        pub instance_id: UncheckedInstanceId,
        /// Data-parallel rank; all ranks if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub dp_rank: Option<u32>,
    }
}

/// Response of `POST /unregister`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Unregistration {
    /// `ok`.
    pub status: SuccessStatus,
    /// Whether a writer still removes the blocks, which no answer has; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forgetting: bool,
}

/// Registered instance.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// The instance.
    pub instance_id: InstanceId,
    /// Endpoints by rank.
    #[schema(value_type = BTreeMap<String, String>)]
    pub endpoints: ByRank<String>,
    /// Kind of a shared cache; absent for an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<SharedCacheKind>,
    /// The instances that are attached to a shared cache; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<InstanceId>>)]
    pub attached: Vec<InstanceId>,
    /// The model.
    pub model_name: String,
    /// The tenant.
    pub tenant_id: String,
    /// Tokens in a block.
    pub block_size: u32,
    /// State of the connections: `connected` if all are.
    pub status: ConnectionStatus,
    /// Listeners by rank.
    #[schema(value_type = BTreeMap<String, Listener>)]
    pub listeners: ByRank<Listener>,
}

/// Listener to a rank's stream.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Listener {
    /// Discovery source that owns the registration; absent for a manual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Endpoint of the event stream.
    pub endpoint: String,
    /// Endpoint that replays messages.
    pub replay_endpoint: Option<String>,
    /// Kind of the engine, if it is registered.
    pub engine: Option<EngineKind>,
    /// Adapter of events that name none.
    pub lora_name: Option<String>,
    /// Meaning of the engine's removals.
    #[serde(default)]
    #[schema(required)]
    pub removal: RemovalMeaning,
    /// State of the connection.
    pub status: ConnectionStatus,
    /// Sequence number of the last applied message.
    pub last_seq: Option<u64>,
    /// Milliseconds since it was applied.
    pub last_event_ms_ago: Option<u64>,
    /// Sequence number of the last live message that was received; null before the first one.
    #[serde(default)]
    pub received_seq: Option<u64>,
    /// Blocks that the rank holds, by tier. A block in two tiers counts in both.
    #[serde(default)]
    #[schema(required)]
    pub blocks: BlocksByTier,
    /// Events applied since the registration.
    #[serde(default)]
    #[schema(required)]
    pub events: u64,
    /// Blocks that these events stored, in any tier.
    #[serde(default)]
    #[schema(required)]
    pub stored_blocks: u64,
    /// Blocks that these events removed, in any tier.
    #[serde(default)]
    #[schema(required)]
    pub removed_blocks: u64,
    /// Gaps between live messages, repaired or not.
    pub gaps: u64,
    /// Trust state of the rank.
    pub trust: Trust,
    /// Progress of a running replay; absent while none runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayStatus>,
    /// Whether the engine is registered with extra keys; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extra_keys: bool,
    /// Blocks that the cache of an engine without events has room for; absent if none are registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<usize>, minimum = 1)]
    pub cache_blocks: Option<NonZeroUsize>,
    /// Shared caches that the rank is attached to; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<InstanceId>>)]
    pub shared_caches: Vec<InstanceId>,
    /// Whether the index evicted blocks of the rank because of its memory limit; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Messages and events that could not be used, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// What is missing, or else the last error; null while the rank is exact.
    pub last_error: Option<String>,
}

/// Number of blocks in each tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlocksByTier {
    /// In device memory.
    pub device: usize,
    /// In host memory.
    pub host_pinned: usize,
    /// On disk.
    pub disk: usize,
    /// In an external store.
    pub external: usize,
}

impl From<PerTier<usize>> for BlocksByTier {
    fn from(blocks: PerTier<usize>) -> Self {
        Self {
            device: blocks[Tier::Device],
            host_pinned: blocks[Tier::Host],
            disk: blocks[Tier::Disk],
            external: blocks[Tier::External],
        }
    }
}

/// Progress of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayStatus {
    /// Applied messages of this epoch.
    pub applied: u64,
    /// Messages that the engine has published in this epoch, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<u64>,
}
