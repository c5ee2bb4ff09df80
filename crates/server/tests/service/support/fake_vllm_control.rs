//! A stand-in for the gRPC server of an engine of vLLM: it names the sources of events that a test wants.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use flash_indexer_proto::vllm_control::{GetKvEventSourcesRequest, GetKvEventSourcesResponse, KvEventSource};
use parking_lot::Mutex;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::codegen::tokio_stream::wrappers::TcpListenerStream;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

type Answer = Result<Vec<KvEventSource>, Status>;

/// The server. It ends when it is dropped.
pub(crate) struct FakeVllmControl {
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl FakeVllmControl {
    pub(crate) fn start(sources: Vec<KvEventSource>) -> Self {
        let answer = Arc::new(Mutex::new(Ok(sources)));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listener = runtime.block_on(listener).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let server = tonic::transport::Server::builder().add_service(Control(Arc::clone(&answer)));
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, answer, runtime: Some(runtime) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn answer(&self, answer: Answer) {
        *self.answer.lock() = answer;
    }
}

impl Drop for FakeVllmControl {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A source of events over ZeroMQ.
pub(crate) fn source(endpoint: &str, replay_endpoint: &str, rank: u32) -> KvEventSource {
    KvEventSource {
        transport: "zmq".to_owned(),
        endpoint: endpoint.to_owned(),
        topic: "kv-events".to_owned(),
        replay_endpoint: replay_endpoint.to_owned(),
        data_parallel_rank: Some(rank),
        encoding: "msgpack".to_owned(),
    }
}

#[derive(Clone)]
struct Control(Arc<Mutex<Answer>>);

impl NamedService for Control {
    const NAME: &'static str = "vllm.Control";
}

impl tower::Service<http::Request<Body>> for Control {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = tonic::codegen::BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = Self(Arc::clone(&self.0));
        Box::pin(async move {
            assert_eq!(request.uri().path(), "/vllm.Control/GetKvEventSources");
            Ok(Grpc::new(ProstCodec::default()).unary(call, request).await)
        })
    }
}

impl UnaryService<GetKvEventSourcesRequest> for Control {
    type Response = GetKvEventSourcesResponse;
    type Future = Ready<Result<Response<GetKvEventSourcesResponse>, Status>>;

    fn call(&mut self, _: Request<GetKvEventSourcesRequest>) -> Self::Future {
        let answer = self.0.lock().clone();
        ready(answer.map(|sources| Response::new(GetKvEventSourcesResponse { sources })))
    }
}
