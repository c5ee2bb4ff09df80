//! A tokenizer service in this process, with one model. Some words in a prompt trigger errors.

use std::collections::HashSet;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use flash_indexer_prompt::tokenize::ServiceAddress;
use flash_indexer_proto::tokenization::tokenization_service_server::{TokenizationService, TokenizationServiceServer};
use flash_indexer_proto::tokenization::{
    InitializeTokenizerRequest, InitializeTokenizerResponse, RenderChatCompletionRequest, RenderChatCompletionResponse,
    TokenizeRequest, TokenizeResponse,
};
use futures_core::Stream;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::support::{DEADLINE, WORDS};

/// State of the service, with the requests that it received. It outlives the sockets.
#[derive(Clone, Default)]
pub(crate) struct Stub {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    ready: HashSet<String>,
    readied: Vec<String>,
    chats: Vec<RenderChatCompletionRequest>,
    /// Trace context of each call of `Tokenize`.
    trace_parents: Vec<Option<String>>,
}

impl Stub {
    /// Models that clients initialized.
    pub(crate) fn readied(&self) -> Vec<String> {
        self.state.lock().readied.clone()
    }

    pub(crate) fn forget_models(&self) {
        self.state.lock().ready.clear();
    }

    pub(crate) fn trace_parents(&self) -> Vec<Option<String>> {
        self.state.lock().trace_parents.clone()
    }

    pub(crate) fn last_chat(&self) -> RenderChatCompletionRequest {
        self.state.lock().chats.last().expect("a chat").clone()
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl TokenizationService for Stub {
    async fn initialize_tokenizer(
        &self,
        request: Request<InitializeTokenizerRequest>,
    ) -> Answer<InitializeTokenizerResponse> {
        let model = request.into_inner().model_name;
        if model != "model" {
            let error_message = format!("no such model: {model}");
            return Ok(Response::new(InitializeTokenizerResponse { success: false, error_message }));
        }
        let mut state = self.state.lock();
        state.readied.push(model.clone());
        state.ready.insert(model);
        Ok(Response::new(InitializeTokenizerResponse { success: true, error_message: String::new() }))
    }

    async fn tokenize(&self, request: Request<TokenizeRequest>) -> Answer<TokenizeResponse> {
        let trace_parent = request.metadata().get("traceparent").map(|value| value.to_str().expect("text").to_owned());
        self.state.lock().trace_parents.push(trace_parent);
        let request = request.into_inner();
        let refusal = |why: &str| {
            Ok(Response::new(TokenizeResponse { error_message: why.to_owned(), ..TokenizeResponse::default() }))
        };
        if !self.state.lock().ready.contains(&request.model_name) {
            return refusal("the model is not ready");
        }
        let content: Vec<u32> = match request.input.as_str() {
            "slow" => pending().await,
            "crash" => return Err(Status::internal("a fault of the service")),
            "lost" => return Err(Status::unimplemented("not implemented")),
            "refuse" => return refusal("these words I refuse"),
            "flood" => vec![u32::MAX; 14 << 20],
            text => text.split_whitespace().map(id_of).collect(),
        };
        let begin = request.add_special_tokens.then_some(0);
        let input_ids = begin.into_iter().chain(content).collect();
        Ok(Response::new(TokenizeResponse { input_ids, success: true, ..TokenizeResponse::default() }))
    }

    async fn render_chat_completion(
        &self,
        request: Request<RenderChatCompletionRequest>,
    ) -> Answer<RenderChatCompletionResponse> {
        self.state.lock().chats.push(request.into_inner());
        let token_ids = vec![3, 4, 5, 6];
        Ok(Response::new(RenderChatCompletionResponse {
            token_ids,
            success: true,
            ..RenderChatCompletionResponse::default()
        }))
    }
}

fn id_of(word: &str) -> u32 {
    WORDS.iter().position(|known| *known == word).unwrap_or(2) as u32
}

/// The service while it listens.
pub(crate) struct Running {
    pub(crate) address: ServiceAddress,
    runtime: Runtime,
}

impl Running {
    /// Starts the service. Port 0 chooses a free port.
    pub(crate) fn start(stub: &Stub, address: &ServiceAddress) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let server = Server::builder().add_service(
            TokenizationServiceServer::new(stub.clone())
                .max_decoding_message_size(usize::MAX)
                .max_encoding_message_size(usize::MAX),
        );
        let _inside = runtime.enter();
        let address = match address {
            ServiceAddress::Unix(path) => {
                // The socket file of a service that died.
                std::fs::remove_file(path).ok();
                let listener = UnixListener::bind(path).expect("a socket");
                runtime.spawn(server.serve_with_incoming(UnixIncoming(listener)));
                address.clone()
            }
            ServiceAddress::Tcp(authority) => {
                let listener = std::net::TcpListener::bind(authority.as_str()).expect("a port");
                listener.set_nonblocking(true).expect("it can be asked");
                let address = ServiceAddress::Tcp(listener.local_addr().expect("an address").to_string());
                let listener = TcpListener::from_std(listener).expect("a listener");
                runtime.spawn(server.serve_with_incoming(TcpIncoming(listener)));
                address
            }
        };
        Self { address, runtime }
    }

    /// Stops the service and closes all connections.
    pub(crate) fn stop(self) {
        let Self { runtime, address } = self;
        runtime.shutdown_timeout(DEADLINE);
        if let ServiceAddress::Unix(path) = address {
            std::fs::remove_file(path).ok();
        }
    }
}

struct UnixIncoming(UnixListener);

impl Stream for UnixIncoming {
    type Item = std::io::Result<UnixStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_accept(context).map(|accepted| Some(accepted.map(|(stream, _)| stream)))
    }
}

struct TcpIncoming(TcpListener);

impl Stream for TcpIncoming {
    type Item = std::io::Result<TcpStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_accept(context).map(|accepted| Some(accepted.map(|(stream, _)| stream)))
    }
}
