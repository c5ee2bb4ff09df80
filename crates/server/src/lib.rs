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
//! | `checked_options.rs` | the check of options before anything is bound, and their files |
//! | `access.rs` | checks of bearer tokens |
//! | `http/` | HTTP API: the table of endpoints and their handlers |
//! | `grpc/` | gRPC API |
//! | `engines.rs` | the engine that renders the prompts of a model's chats |
//! | `body_limits.rs` | limits of bodies and texts, shared by HTTP and gRPC |
//! | `pick_options.rs` | options of a pick, over HTTP and gRPC |
//! | `reload.rs` | files that are read again while the service runs |
//! | `texts.rs` | texts that are tokenized, shared fairly between clients |
//! | `traced.rs` | spans of requests, with their attributes |
//! | `registrar.rs` | the registry as the registrar of discovery |
//!
//! Sockets of engines and decoders are in `ingest`, registrations and queries in `registry`, discovery sources in
//! `discovery`, snapshots and peers in `peers`. Their public types are re-exported here.

mod access;
mod body_limits;
mod checked_options;
mod engines;
#[cfg(test)]
mod failure_tests;
mod grpc;
mod http;
mod pick_options;
mod registrar;
mod reload;
mod server;
mod texts;
mod traced;

pub use flash_indexer_credentials::{ClientFiles, KeyPairFiles, TlsFiles};
pub use flash_indexer_discovery::{
    DiscoveryOptions, DiscoverySource, DnsName, DnsOptions, EngineTemplate, KubernetesNamespace, KubernetesOptions,
    VllmAddress, VllmOptions,
};
pub use flash_indexer_ingest::{QUEUE_BYTES_MIN, ReleaseOutcome};
pub use flash_indexer_otlp::{OtlpEndpoint, OtlpOptions, SampleRatio};
pub use flash_indexer_peers::{PeerDeadlines, PeerUrl, SnapshotOptions};
pub use flash_indexer_registry::{
    Indexer, IndexerOptions, PodOptions, Query, QueryOptions, ReportedHits, RequestPhase, TierWeights, TokenPrompt,
    TokenizationOptions, TokenizerServiceOptions,
};
pub use flash_indexer_telemetry::metrics::MetricNames;
pub use flash_indexer_types::names::{ENDPOINT_BYTES_MAX, INSTANCE_ID_BYTES_MAX, NAME_BYTES_MAX, SALT_BYTES_MAX};
pub use flash_indexer_types::networks::{EngineNetwork, EngineNetworks};
pub use flash_indexer_types::{
    EngineKind, InstanceId, ListenerOptions, ModelKey, RankId, RankPosition, Registration, Trust, use_random_hash_key,
};
pub use grpc::EndpointPickerOptions;
pub use server::{Server, ServerOptions, StartError};
