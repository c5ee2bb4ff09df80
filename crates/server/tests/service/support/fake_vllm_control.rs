//! A stand-in for the gRPC server of an engine of vLLM: it names the sources of events that a test configures.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use flash_indexer_proto::vllm_control::{
    GetKvEventSourcesRequest, GetKvEventSourcesResponse, GetModelInfoRequest, GetServerInfoRequest, KvEventSource,
    ModelInfo, ServerInfo,
};
use parking_lot::Mutex;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::codegen::tokio_stream::wrappers::TcpListenerStream;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

type Answer<T> = Result<T, Status>;

/// Answers of the server.
struct Answers {
    sources: Answer<Vec<KvEventSource>>,
    server: Answer<ServerInfo>,
    model: Answer<ModelInfo>,
}

/// The server. It ends when it is dropped.
pub(crate) struct FakeVllmControl {
    address: SocketAddr,
    answers: Arc<Mutex<Answers>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl FakeVllmControl {
    /// A server that names these sources, and neither a block size nor a model.
    pub(crate) fn start(sources: Vec<KvEventSource>) -> Self {
        let without = |call: &str| Status::unimplemented(call);
        let answers = Arc::new(Mutex::new(Answers {
            sources: Ok(sources),
            server: Err(without("GetServerInfo")),
            model: Err(without("GetModelInfo")),
        }));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listener = runtime.block_on(listener).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let server = tonic::transport::Server::builder().add_service(Control(Arc::clone(&answers)));
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, answers, runtime: Some(runtime) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn answer(&self, sources: Answer<Vec<KvEventSource>>) {
        self.answers.lock().sources = sources;
    }

    /// From now on the server names its block size and its model.
    pub(crate) fn describe(&self, block_size: u32, model_name: &str) {
        let mut answers = self.answers.lock();
        let effective_attention_block_size = Some(u64::from(block_size));
        answers.server = Ok(ServerInfo { kv_block_size: 1, effective_attention_block_size });
        answers.model = Ok(ModelInfo { served_model_name: model_name.to_owned() });
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
struct Control(Arc<Mutex<Answers>>);

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
        let control = Self(Arc::clone(&self.0));
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/vllm.Control/GetKvEventSources" => {
                    let sources = |_: GetKvEventSourcesRequest| {
                        let sources = control.0.lock().sources.clone();
                        sources.map(|sources| GetKvEventSourcesResponse { sources })
                    };
                    Grpc::new(ProstCodec::default()).unary(Call(sources), request).await
                }
                "/vllm.Control/GetServerInfo" => {
                    let server = |_: GetServerInfoRequest| control.0.lock().server.clone();
                    Grpc::new(ProstCodec::default()).unary(Call(server), request).await
                }
                "/vllm.Control/GetModelInfo" => {
                    let model = |_: GetModelInfoRequest| control.0.lock().model.clone();
                    Grpc::new(ProstCodec::default()).unary(Call(model), request).await
                }
                other => panic!("the server has no {other}"),
            })
        })
    }
}

/// A method that answers at once.
struct Call<F>(F);

impl<Q, A, F: FnMut(Q) -> Answer<A>> UnaryService<Q> for Call<F> {
    type Response = A;
    type Future = Ready<Result<Response<A>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        ready((self.0)(request.into_inner()).map(Response::new))
    }
}
