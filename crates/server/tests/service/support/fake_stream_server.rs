//! A stand-in for an engine's gRPC server: it answers `SubscribeKvEvents` from a history of batches, as a test configures.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use flash_indexer_proto::engine_events::kv_cache_event::Data;
use flash_indexer_proto::engine_events::{
    EngineLoad, KvBlock, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvEventBatch, KvSnapshotChunk,
    SubscribeKvEventsRequest,
};
use flash_indexer_test_support::wait_for;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::codegen::tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::{BLOCK_TOKENS, PATIENCE};

/// The server's treatment of a start number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum History {
    /// It sends the batches after that number, and future ones. After 0 it sends only future ones.
    Kept,
    /// It ignores the number and sends future batches.
    Ignored,
    /// It refuses every number but 0.
    Refused,
}

struct State {
    history: History,
    batches: Vec<KvEventBatch>,
    /// The first batches of a call with a start number above 0.
    first: Vec<KvEventBatch>,
    calls: Vec<UnboundedSender<Result<KvEventBatch, Status>>>,
    /// Whether the engine is still starting: the call is unknown.
    is_starting: bool,
    refused: usize,
    starts: Vec<u64>,
}

/// The server. Its connections end when it is dropped.
pub(crate) struct FakeStreamServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl FakeStreamServer {
    pub(crate) fn start(history: History) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), history)
    }

    /// A server at the address of one that has stopped.
    pub(crate) fn at(address: SocketAddr, history: History) -> Self {
        Self::keeping(address, history, Vec::new())
    }

    /// A server that has these batches before its first call.
    pub(crate) fn keeping(address: SocketAddr, history: History, batches: Vec<KvEventBatch>) -> Self {
        let (first, calls, starts) = (Vec::new(), Vec::new(), Vec::new());
        let state = State { history, batches, first, calls, is_starting: false, refused: 0, starts };
        let state = Arc::new(Mutex::new(state));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = wait_for("the port", PATIENCE, || runtime.block_on(tokio::net::TcpListener::bind(address)).ok());
        let address = listener.local_addr().expect("an address");
        let service = Service(Arc::clone(&state));
        let server = tonic::transport::Server::builder().add_service(service);
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, state, runtime: Some(runtime) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("grpc://{}", self.address)
    }

    /// Sends a batch to every call, and keeps it.
    pub(crate) fn publish(&self, batch: KvEventBatch) {
        let mut state = self.state.lock();
        state.calls.retain(|call| call.send(Ok(batch.clone())).is_ok());
        state.batches.push(batch);
    }

    /// Keeps a batch without sending it.
    pub(crate) fn keep(&self, batch: KvEventBatch) {
        self.state.lock().batches.push(batch);
    }

    /// Begins later calls with a start number above 0 with these batches.
    pub(crate) fn begin_with(&self, batches: Vec<KvEventBatch>) {
        self.state.lock().first = batches;
    }

    /// Sets whether the server rejects the call as unknown, like a starting engine.
    pub(crate) fn set_starting(&self, is_starting: bool) {
        self.state.lock().is_starting = is_starting;
    }

    /// Number of calls that were refused as premature.
    pub(crate) fn refused(&self) -> usize {
        self.state.lock().refused
    }

    /// Ends every call, with an error or without one.
    pub(crate) fn end_calls(&self, error: Option<Status>) {
        for call in self.state.lock().calls.drain(..) {
            if let Some(error) = &error {
                let _ = call.send(Err(error.clone()));
            }
        }
    }

    /// Start numbers of the calls so far.
    pub(crate) fn starts(&self) -> Vec<u64> {
        self.state.lock().starts.clone()
    }

    /// Waits for this number of calls, with the last one open.
    pub(crate) fn wait_for_calls(&self, count: usize) {
        wait_for("a call", PATIENCE, || {
            let mut state = self.state.lock();
            state.calls.retain(|call| !call.is_closed());
            (state.starts.len() >= count && !state.calls.is_empty()).then_some(())
        });
    }
}

impl Drop for FakeStreamServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The service of SGLang's server.
#[derive(Clone)]
struct Service(Arc<Mutex<State>>);

impl NamedService for Service {
    const NAME: &'static str = "sglang.grpc.scheduler.SglangScheduler";
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = tonic::codegen::BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = Self(Arc::clone(&self.0));
        Box::pin(async move {
            assert!(request.uri().path().ends_with("/SubscribeKvEvents"), "{request:?}");
            // A test may send longer batches than a client accepts.
            let mut grpc = Grpc::new(ProstCodec::default()).max_encoding_message_size(usize::MAX);
            Ok(grpc.server_streaming(call, request).await)
        })
    }
}

impl ServerStreamingService<SubscribeKvEventsRequest> for Service {
    type Response = KvEventBatch;
    type ResponseStream = UnboundedReceiverStream<Result<KvEventBatch, Status>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<SubscribeKvEventsRequest>) -> Self::Future {
        let start = request.get_ref().start_sequence_number;
        let mut state = self.0.lock();
        if state.is_starting {
            state.refused += 1;
            return ready(Err(Status::unimplemented("the engine is starting")));
        }
        state.starts.push(start);
        if state.history == History::Refused && start != 0 {
            return ready(Err(Status::out_of_range("nothing is kept between calls")));
        }
        let (call, batches) = unbounded_channel();
        let sent: Vec<_> = match (state.history, start) {
            (History::Kept, 1..) => {
                state.batches.iter().filter(|batch| batch.sequence_number > start).cloned().collect()
            }
            _ => state.first.clone(),
        };
        sent.into_iter().for_each(|batch| drop(call.send(Ok(batch))));
        state.calls.push(call);
        ready(Ok(Response::new(UnboundedReceiverStream::new(batches))))
    }
}

/// A batch of rank 0.
pub(crate) fn batch(sequence_number: u64, events: impl IntoIterator<Item = Data>) -> KvEventBatch {
    let events = events.into_iter().map(|data| KvCacheEvent { event_id: 0, data: Some(data) }).collect();
    // Each batch has the time of its publication.
    let timestamp = 1.0 + sequence_number as f64;
    KvEventBatch { sequence_number, timestamp, events, dp_rank: Some(0), snapshot: None, load: None }
}

/// The batch as a part of a snapshot.
pub(crate) fn part(of: (u32, u32), unknown_before: u64, batch: KvEventBatch) -> KvEventBatch {
    let snapshot = Some(KvSnapshotChunk { index: of.0, count: of.1, blocks: 0, unknown_before });
    KvEventBatch { snapshot, ..batch }
}

/// A batch with the engine's load only.
pub(crate) fn load(sequence_number: u64) -> KvEventBatch {
    KvEventBatch { load: Some(EngineLoad { load_only: true }), ..batch(sequence_number, []) }
}

/// Blocks after `parent`, which have the tokens of [`tokens`](super::tokens).
pub(crate) fn stored(parent: Option<i64>, hashes: &[i64]) -> Data {
    let block = |&hash: &i64| KvBlock {
        block_hash: hash,
        token_ids: super::tokens(&[hash.unsigned_abs()]),
        block_size: BLOCK_TOKENS.cast_signed(),
        ..KvBlock::default()
    };
    let blocks = hashes.iter().map(block).collect();
    Data::Stored(KvBlocksStored { blocks, parent_block_hash: parent, ..KvBlocksStored::default() })
}

/// Blocks in host memory.
pub(crate) fn stored_on_host(parent: Option<i64>, hashes: &[i64]) -> Data {
    let Data::Stored(stored) = stored(parent, hashes) else { unreachable!("it is a store") };
    Data::Stored(KvBlocksStored { medium: Some("CPU".to_owned()), tier: Some(2), ..stored })
}

pub(crate) fn removed(hashes: &[i64]) -> Data {
    Data::Removed(KvBlocksRemoved { block_hashes: hashes.to_vec(), ..KvBlocksRemoved::default() })
}

pub(crate) fn cleared() -> Data {
    Data::Cleared(KvCacheCleared { ownership: None })
}
