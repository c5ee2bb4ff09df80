//! Calls of one engine's server.

use std::io;
use std::time::Duration;

use flash_indexer_proto::engine_events::{KvEventBatch, SubscribeKvEventsRequest};
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use flash_indexer_types::EngineKind;
use flash_indexer_types::endpoints::{RefusedAddress, streamed_address};
use flash_indexer_types::names::shorten;
use flash_indexer_types::networks::EngineNetworks;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// Longest time to connect.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// Time without traffic after which a connection is probed, and longest wait for the response.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Limit of a batch, in bytes.
pub(crate) const BATCH_BYTES_MAX: usize = 16 << 20;

/// Services that have the call, with their engines if registrations name them. Their paths differ only in the service name.
const SERVICES: [(Option<EngineKind>, &str); 4] = [
    (Some(EngineKind::Vllm), "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents"),
    (Some(EngineKind::Sglang), "/sglang.grpc.scheduler.SglangScheduler/SubscribeKvEvents"),
    (Some(EngineKind::Trtllm), "/trtllm.TrtllmService/SubscribeKvEvents"),
    (None, "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/SubscribeKvEvents"),
];

/// A call that has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The host resolves to addresses that are refused.
    #[error("the host of {endpoint} is refused: {refused}")]
    Refused { endpoint: String, refused: RefusedAddress },
    /// There is no connection, or it has ended.
    #[error("failed to stream events from {endpoint}: {why}; check that the engine's gRPC server runs")]
    Unreachable { endpoint: String, why: String },
    /// The server has none of the services, or no events.
    #[error(
        "failed to stream events from {endpoint}: the server has no SubscribeKvEvents: {why}; start the engine with its KV events and its gRPC server, or register its ZeroMQ endpoint"
    )]
    Unimplemented { endpoint: String, why: String },
    /// A batch is too long.
    #[error(
        "failed to stream events from {endpoint}: a batch has more than {BATCH_BYTES_MAX} bytes, and is lost; lower the engine's batch size"
    )]
    TooLarge { endpoint: String },
    /// The server no longer has the next batches.
    #[error("failed to stream events from {endpoint}: the server cannot continue after the last batch: {why}")]
    Lost { endpoint: String, why: String },
    /// The call has ended otherwise.
    #[error("failed to stream events from {endpoint}: {why}")]
    Failed { endpoint: String, why: String },
}

impl CallError {
    /// Label for counters.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused_address",
            Self::Unreachable { .. } => "stream_unreachable",
            Self::Unimplemented { .. } | Self::Failed { .. } => "stream_failed",
            Self::TooLarge { .. } => "stream_too_large",
            Self::Lost { .. } => "stream_lost_data",
        }
    }

    /// Whether the metrics count it: the server has answered.
    pub(crate) const fn is_counted(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::Unreachable { .. })
    }

    /// Whether a call that continues after the last batch would fail again.
    pub(crate) const fn is_position_lost(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::Lost { .. })
    }
}

/// Client of one engine's server.
pub(crate) struct Client {
    endpoint: String,
    networks: EngineNetworks,
    /// Services to try.
    services: Vec<&'static str>,
    /// The service of the last call.
    service: usize,
}

impl Client {
    /// A client of the server at this endpoint, which belongs to this engine if it is known.
    pub(crate) fn new(endpoint: &str, engine: Option<EngineKind>, networks: EngineNetworks) -> Self {
        let of_engine = SERVICES.iter().filter(|(kind, _)| engine.is_none() || *kind == engine);
        let services = of_engine.map(|&(_, path)| path).collect();
        Self { endpoint: endpoint.to_owned(), networks, services, service: 0 }
    }

    /// Begins a call after this batch. 0 means no batch.
    pub(crate) async fn subscribe(
        &mut self,
        start_sequence_number: u64,
        metrics: &Metrics,
    ) -> Result<Streaming<KvEventBatch>, CallError> {
        let channel = self.connect(metrics).await?;
        loop {
            let path = PathAndQuery::from_static(self.services[self.service]);
            let mut grpc = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(BATCH_BYTES_MAX);
            grpc.ready().await.map_err(|error| self.unreachable(error))?;
            let codec = ProstCodec::<SubscribeKvEventsRequest, KvEventBatch>::default();
            let request = Request::new(SubscribeKvEventsRequest { start_sequence_number });
            match grpc.server_streaming(request, path, codec).await {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) if status.code() == Code::Unimplemented && self.service + 1 < self.services.len() => {
                    self.service += 1;
                }
                Err(status) if status.code() == Code::Unimplemented => {
                    // The server may still be starting: the next call tries each again.
                    self.service = 0;
                    return Err(self.error(&status, metrics));
                }
                Err(status) => return Err(self.error(&status, metrics)),
            }
        }
    }

    async fn connect(&self, metrics: &Metrics) -> Result<Channel, CallError> {
        let address = streamed_address(&self.endpoint).unwrap_or_default();
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| self.unreachable(error))?
            .connect_timeout(CONNECT_DEADLINE)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true);
        let dialled = tokio::time::timeout(CONNECT_DEADLINE, self.dial(address, metrics)).await;
        let stream = dialled.map_err(|_| self.unreachable("the connection timed out"))??;
        // Each call has its own connection: one process answers the whole call, and every dialled address is checked.
        let mut stream = Some(TokioIo::new(stream));
        let connector = service_fn(move |_: Uri| {
            let stream = stream.take().ok_or_else(|| io::Error::other("the connection has ended"));
            std::future::ready(stream)
        });
        endpoint.connect_with_connector(connector).await.map_err(|error| self.unreachable(error))
    }

    /// Connects to an address of a host and port that engines may have.
    async fn dial(&self, address: &str, metrics: &Metrics) -> Result<TcpStream, CallError> {
        let (mut failed, mut first_refused) = (None, None);
        for address in tokio::net::lookup_host(address).await.map_err(|error| self.unreachable(error))? {
            if let Err(refused) = self.networks.check_address(address.ip()) {
                first_refused.get_or_insert(refused);
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(|error| self.unreachable(error))?;
                    return Ok(stream);
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(match (failed, first_refused) {
            (Some(error), _) => self.unreachable(error),
            (None, Some(refused)) => {
                metrics.limit_reached(Limit::Addresses);
                CallError::Refused { endpoint: self.endpoint.clone(), refused }
            }
            (None, None) => self.unreachable("the host has no address"),
        })
    }

    fn unreachable(&self, why: impl ToString) -> CallError {
        CallError::Unreachable { endpoint: self.endpoint.clone(), why: shorten(why.to_string()) }
    }

    /// The error of a status with which a call has ended.
    pub(crate) fn error(&self, status: &Status, metrics: &Metrics) -> CallError {
        let endpoint = self.endpoint.clone();
        let why = shorten(format!("{:?}: {}", status.code(), status.message()));
        match status.code() {
            // tonic reports its own limit with this code and text.
            Code::OutOfRange if status.message().contains("message length too large") => {
                metrics.limit_reached(Limit::StreamedBytes);
                CallError::TooLarge { endpoint }
            }
            Code::OutOfRange | Code::DataLoss => CallError::Lost { endpoint, why },
            Code::Unimplemented => CallError::Unimplemented { endpoint, why },
            Code::Unavailable | Code::Unknown | Code::Cancelled => CallError::Unreachable { endpoint, why },
            _ => CallError::Failed { endpoint, why },
        }
    }

    /// The error of a call that the server has ended without an error.
    pub(crate) fn ended(&self) -> CallError {
        self.unreachable("the server ended the call")
    }
}
