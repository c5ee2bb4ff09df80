//! The service: an [`Indexer`] behind HTTP and gRPC, with recovery from peers and comparison with them.
//!
//! ```text
//!  engine ──ZeroMQ──▶ sockets ──▶ decoders ──▶ writers (each owns the write side of some indexes)
//!                                                 │
//!  client ──HTTP, gRPC──▶ handlers ──▶ Indexer::query ──▶ index
//! ```
//!
//! ```no_run
//! use flash_indexer_server::{Server, ServerOptions};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::start(ServerOptions { port: 0, ..ServerOptions::default() }).await?;
//! println!("listening on {}", server.address());
//! server.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! | file | role |
//! |---|---|
//! | `server.rs` | options, start and stop of the whole service ([`Server`]) |
//! | `access.rs` | checks of bearer tokens |
//! | `answer_body.rs` | bodies of answers that count until they are sent |
//! | `http/` | HTTP API: the table of endpoints and their handlers |
//! | `grpc/` | gRPC API |
//! | `body_budget.rs` | budgets of the bytes of all bodies, shared between clients |
//! | `content_encoding.rs` | content encodings of bodies and messages |
//! | `fair_places.rs` | places that clients share fairly |
//! | `large_requests.rs` | threads for requests with large bodies |
//! | `little_endian.rs` | lists of numbers as bytes |
//! | `pick_options.rs` | options of a pick, over HTTP and gRPC |
//! | `reload.rs` | files that are read again while the service runs |
//! | `texts.rs` | texts that are tokenized, shared fairly between clients |
//! | `registrar.rs` | the registry as the registrar of discovery |
//!
//! Sockets of engines and decoders are in `ingest`, registrations and queries in `registry`, discovery sources in
//! `discovery`, snapshots and peers in `peers`. Their public types are re-exported here.

mod access;
mod answer_body;
mod body_budget;
mod content_encoding;
mod engines;
#[cfg(test)]
mod failure_tests;
mod fair_places;
mod grpc;
mod http;
mod large_requests;
mod little_endian;
mod pick_options;
mod registrar;
mod reload;
mod server;
mod texts;

pub use flash_indexer_credentials::{ClientFiles, CredentialsError, KeyPairFiles, TlsFiles};
pub use flash_indexer_discovery::{
    DiscoveryOptions, DiscoverySource, DnsName, DnsNameError, DnsOptions, EngineTemplate, KubernetesNamespace,
    KubernetesOptions, NamespaceError, VllmAddress, VllmAddressError, VllmOptions,
};
pub use flash_indexer_ingest::{Connection, ListenerReport, QUEUE_BYTES_MIN, ReleaseOutcome, ReplayProgress};
pub use flash_indexer_peers::{PeerDeadlines, PeerUrl, PeerUrlError, RecoveryError, SnapshotOptions};
pub use flash_indexer_registry::{
    Answer, Indexer, IndexerOptions, ListenError, PodFilter, PodOptions, PodScore, PredictError, Predicted,
    PredictedBlocks, PredictionLimits, Query, QueryError, QueryOptions, RankAnswer, RegistrationError, ScoreOptions,
    Scores, StoreAnswer, TierWeights, TierWeightsError, TokenPrompt, TokenizationError, TokenizationOptions,
    TokenizerServiceOptions, Unregistered,
};
pub use flash_indexer_telemetry::metrics::MetricNames;
pub use flash_indexer_types::names::{
    ENDPOINT_BYTES_MAX, INSTANCE_ID_BYTES_MAX, NAME_BYTES_MAX, NameError, NameField, SALT_BYTES_MAX,
};
pub use flash_indexer_types::networks::{EngineNetwork, EngineNetworkError, EngineNetworks};
pub use flash_indexer_types::{
    InstanceId, InstanceIdError, ModelKey, Position, RankId, Registered, Registration, Trust, use_random_hash_key,
};
pub use grpc::EndpointPickerOptions;
pub use server::{Server, ServerOptions, StartError};
