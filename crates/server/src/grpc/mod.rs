//! gRPC API: the same answers as HTTP, on a separate port.
//!
//! `proto/` at the root of the repository defines the services.
//!
//! | file | role |
//! |---|---|
//! | `router_service.rs` | `flash_indexer.v1.RouterService`: queries and predictions |
//! | `answers.rs` | response stream of `QueryStream` |
//! | `indexer_service.rs` | `indexer.v1.IndexerService`: scores of instances |
//! | `endpoint_picker/` | the endpoint picker for gateways, on a separate port |
//! | `large_messages.rs` | decoding and answering of large messages on the threads for large requests |
//! | `lists.rs` | tokens and local hashes of a request, as a repeated field or as bytes |
//! | `status.rs` | mapping of errors to gRPC statuses, and metrics of requests |

mod answers;
mod endpoint_picker;
mod indexer_service;
mod large_messages;
mod lists;
mod router_service;
mod status;

use std::sync::Arc;
use std::time::Duration;

use flash_indexer_proto::ext_proc::external_processor_server::ExternalProcessorServer;
use flash_indexer_registry::Indexer;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::codec::CompressionEncoding;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::warn;

pub use self::endpoint_picker::EndpointPickerOptions;
use self::endpoint_picker::{EndpointPicker, Picker};
use self::indexer_service::Scores;
use self::large_messages::LargeMessages;
use self::proto::indexer_service_server::IndexerServiceServer;
use self::proto::router_service_server::RouterServiceServer;
use self::router_service::Router;
use crate::access::AccessControl;
use crate::body_limits::BodyLimits;
use crate::http::Api;
use crate::texts::Texts;
use crate::traced::RequestTracer;
use flash_indexer_connections::{BoundedListener, IncomingConnections};
use flash_indexer_peers::RecoveryStatus;

/// Limit of concurrent HTTP/2 streams, and so of requests, on one connection. Clients delay further requests.
const STREAMS_PER_CONNECTION_MAX: u32 = 1_024;
/// Largest head of a request: its names and values, and 32 bytes for each. A larger one is refused.
const HEAD_BYTES_MAX: u32 = 16 << 10;
/// Idle time of a connection after which a ping is sent. A connection without a reply is closed.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_DEADLINE: Duration = Duration::from_secs(20);

/// Messages and service traits, generated from `proto/`.
mod proto {
    pub(super) use flash_indexer_proto::DESCRIPTORS;
    pub(super) use flash_indexer_proto::flash_indexer::v1::*;
    pub(super) use flash_indexer_proto::indexer::v1::*;
}

/// State that the services share.
#[derive(Clone)]
struct GrpcState {
    indexer: Arc<Indexer>,
    access: Arc<AccessControl>,
    /// Largest decompressed message, in bytes.
    body_bytes_max: usize,
    texts: Arc<Texts>,
    tracer: Option<RequestTracer>,
    /// Becomes true when the server stops. Streams then end.
    stopping: watch::Receiver<bool>,
}

/// A running gRPC server.
#[derive(Debug)]
pub(crate) struct GrpcServer {
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl GrpcServer {
    /// Serves until the server is stopped or dropped. Health is `NOT_SERVING` until recovery has finished, and while a
    /// thread is stalled or a stream restarts after a panic.
    ///
    /// # Errors
    ///
    /// Fails if the file descriptors are invalid.
    pub(crate) fn start(
        listener: BoundedListener,
        (indexer, access): (Arc<Indexer>, Arc<AccessControl>),
        bodies: &BodyLimits,
        recovery: Arc<RecoveryStatus>,
        tracer: Option<RequestTracer>,
    ) -> Result<Self, tonic_reflection::server::Error> {
        let describe = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let (reflection, older_reflection) = (describe().build_v1()?, describe().build_v1alpha()?);
        let (reporter, health) = tonic_health::server::health_reporter();
        let (stop, stopping) = watch::channel(false);
        let reported = Arc::clone(&indexer);
        let body_bytes_max = bodies.bytes_max;
        let (texts, traced) = (Arc::clone(&bodies.texts), tracer.clone());
        let shared = GrpcState { indexer, access, body_bytes_max, texts, tracer: traced, stopping: stopping.clone() };
        // The limit is also that of a decompressed message.
        let scores = IndexerServiceServer::new(Scores(shared.clone()))
            .max_decoding_message_size(bodies.bytes_max)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd);
        let router = RouterServiceServer::new(Router(shared))
            .max_decoding_message_size(bodies.bytes_max)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd);
        let probes = bodies.with_total(PROBES_BYTES_TOTAL_MAX);
        let routes = bounded_server()
            .add_service(limited(reflection.max_decoding_message_size(PROBE_BYTES_MAX), &probes, None))
            .add_service(limited(older_reflection.max_decoding_message_size(PROBE_BYTES_MAX), &probes, None))
            .add_service(limited(health.max_decoding_message_size(PROBE_BYTES_MAX), &probes, None))
            .add_service(limited(scores, bodies, tracer.clone()))
            .add_service(limited(router, bodies, tracer));
        let serving = tokio::spawn(async move {
            let reporting = tokio::spawn(report_health(reporter, reported, recovery, stopping.clone()));
            let stopped = until_true(stopping);
            if let Err(error) = routes.serve_with_incoming_shutdown(IncomingConnections::of(listener), stopped).await {
                warn!(%error, "failed to serve gRPC; restart the service");
            }
            reporting.abort();
        });
        Ok(Self { stop, serving })
    }

    /// Serves the endpoint picker until the server is stopped or dropped.
    pub(crate) fn start_endpoint_picker(
        listener: BoundedListener,
        api: Arc<Api>,
        bodies: &BodyLimits,
        options: EndpointPickerOptions,
    ) -> Self {
        let (stop, stopping) = watch::channel(false);
        let picker = Arc::new(Picker::new(api, options));
        let service = ExternalProcessorServer::new(EndpointPicker(picker))
            .max_decoding_message_size(endpoint_picker::messages_bytes_max(bodies.bytes_max));
        let routes = bounded_server().add_service(limited(service, bodies, None));
        let serving = tokio::spawn(async move {
            let stopped = until_true(stopping);
            if let Err(error) = routes.serve_with_incoming_shutdown(IncomingConnections::of(listener), stopped).await {
                warn!(%error, "failed to serve the endpoint picker; restart the service");
            }
        });
        Self { stop, serving }
    }

    /// Stops the server: accepts no more requests, and waits up to `drain` for running ones.
    pub(crate) async fn stop(self, drain: Duration) {
        let Self { stop, mut serving } = self;
        stop.send_replace(true);
        if tokio::time::timeout(drain, &mut serving).await.is_err() {
            warn!(deadline = ?drain, "failed to drain gRPC requests: deadline exceeded; closing their connections");
            serving.abort();
        }
    }
}

/// A server whose connections have limits.
fn bounded_server() -> Server {
    Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_max_header_list_size(HEAD_BYTES_MAX)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_DEADLINE))
}

/// Waits until the flag is true. A dropped sender counts as true.
async fn until_true(mut stopping: watch::Receiver<bool>) {
    // An error means that the sender was dropped.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Largest message of health checks and reflection, which need no token: they name a service, a file or a symbol.
const PROBE_BYTES_MAX: usize = 4 << 10;
/// Bytes of the calls of health checks and reflection, and of their answers. They have a separate budget: a service whose other budgets are
/// used up is still healthy.
const PROBES_BYTES_TOTAL_MAX: usize = 8 << 20;

/// Service whose calls and answers count in the budgets of bodies, and whose unary calls are traced.
fn limited<S>(service: S, bodies: &BodyLimits, tracer: Option<RequestTracer>) -> LargeMessages<S> {
    LargeMessages { service, bodies: bodies.clone(), tracer }
}

/// Interval at which health is updated.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

async fn report_health(
    reporter: HealthReporter,
    indexer: Arc<Indexer>,
    recovery: Arc<RecoveryStatus>,
    stopping: watch::Receiver<bool>,
) {
    let services = ["", proto::indexer_service_server::SERVICE_NAME, proto::router_service_server::SERVICE_NAME];
    let report = async |status: ServingStatus| {
        for service in services {
            reporter.set_service_status(service, status).await;
        }
    };
    report(ServingStatus::NotServing).await;
    // An unreadable dump stops the program. Unusable peers do not.
    if recovery.end().await.is_ok() {
        let mut was_healthy = false;
        loop {
            let is_healthy = indexer.problems().is_empty();
            if is_healthy != was_healthy {
                report(if is_healthy { ServingStatus::Serving } else { ServingStatus::NotServing }).await;
                was_healthy = is_healthy;
            }
            tokio::select! {
                () = until_true(stopping.clone()) => break,
                () = tokio::time::sleep(HEALTH_INTERVAL) => {}
            }
        }
        report(ServingStatus::NotServing).await;
    }
}
