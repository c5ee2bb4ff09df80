//! The indexing service: engines' event streams in over ZeroMQ, answers out over HTTP.
//!
//! ```text
//!  engine ──SUB──▶ sockets ──▶ decoders ──▶ writers (each owns the write side of some indexes)
//!                                              │
//!  client ──HTTP──▶ handlers ──▶ Indexer::query ──▶ index
//! ```
//!
//! [`Indexer`] is the whole service without HTTP; [`Server`] puts HTTP in front of it.

mod connections;
#[cfg(test)]
mod failure_tests;
mod grpc;
mod http;
mod peers;
mod registrar;
mod server;

pub use flash_indexer_discovery::{
    DiscoveryOptions, DiscoverySource, DnsName, DnsNameError, DnsOptions, EngineTemplate, KubernetesNamespace,
    KubernetesOptions, NamespaceError,
};
pub use flash_indexer_ingest::{Connection, ListenerReport, ReleaseOutcome, ReplayProgress};
pub use flash_indexer_registry::{Answer, QueryOptions, RankAnswer, StoreAnswer};
pub use flash_indexer_registry::{
    Indexer, IndexerOptions, ListenError, PodOptions, PredictError, QueryError, RegistrationError, Unregistered,
};
pub use flash_indexer_registry::{
    PodFilter, PodScore, Predicted, PredictedBlocks, PredictionLimits, ScoreOptions, Scores, TierWeights,
    TierWeightsError,
};
pub use flash_indexer_registry::{Query, TokenPrompt};
pub use flash_indexer_registry::{TokenizationError, TokenizationOptions, TokenizerServiceOptions};
pub use flash_indexer_telemetry::metrics::MetricNames;
pub use flash_indexer_types::names::{
    ENDPOINT_BYTES_MAX, INSTANCE_ID_BYTES_MAX, NAME_BYTES_MAX, NameError, NameField, SALT_BYTES_MAX,
};
pub use flash_indexer_types::{
    InstanceId, InstanceIdError, ModelKey, Position, RankId, Registered, Registration, Trust, use_random_hash_key,
};
pub use peers::{PeerDeadlines, PeerUrl, PeerUrlError, RecoveryError};
pub use server::{Server, ServerOptions, StartError};
