//! An endpoint picker for gateways: `ExternalProcessor` of Envoy, as an `InferencePool` of the Kubernetes Gateway API calls it.
//!
//! | file | role |
//! |---|---|
//! | `exchange.rs` | the parts of one HTTP request and its response, and their handling |
//! | `choice.rs` | the choice of an instance for a request |
//! | `messages.rs` | messages to and from Envoy |

mod choice;
mod exchange;
mod messages;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use flash_indexer_access::Scope;
use flash_indexer_connections::ConnectionHandle;
use flash_indexer_proto::ext_proc::external_processor_server::ExternalProcessor;
use flash_indexer_proto::ext_proc::{ProcessingRequest, ProcessingResponse};
use futures_core::Stream;
use tonic::{Request, Response, Status, Streaming};

pub(super) use self::choice::Picker;
use self::exchange::Exchange;
use super::answers::Requests;
use super::status::{InFlightRequest, RpcError, authorization};
use crate::access::Permission;
use crate::traced::trace_parent;

/// Options of the endpoint picker.
#[derive(Debug, Clone)]
pub struct EndpointPickerOptions {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Port of the engines for their clients' requests, unless an instance's name has one.
    pub target_port: u16,
    /// The model of requests that name no registered one. If this model is not registered, the only registered model is used.
    pub model_name: String,
    /// The tenant of all requests.
    pub tenant_id: String,
    /// Limit of the requests in flight of an instance; none means no limit.
    pub requests_max: Option<u32>,
}

/// Service of the endpoint picker.
pub(super) struct EndpointPicker(pub(super) Arc<Picker>);

#[tonic::async_trait]
impl ExternalProcessor for EndpointPicker {
    type ProcessStream = Exchanges;

    async fn process(&self, request: Request<Streaming<ProcessingRequest>>) -> Result<Response<Exchanges>, Status> {
        let client = request.extensions().get::<ConnectionHandle>().map(ConnectionHandle::client);
        let api = &self.0.api;
        let (metadata, requests) = Requests::of(request, messages_bytes_max(api.bodies.bytes_max));
        let admitted = api.access.admit(authorization(&metadata), Permission::Tenant(Scope::Query));
        let grant = admitted.map_err(RpcError::from).and_then(|grant| {
            grant.check_tenant(&self.0.options.tenant_id)?;
            Ok(grant)
        });
        // The call is counted when its stream begins: only a failure of the entire stream is answered at once.
        let grant = InFlightRequest::begin(&api.indexer, "Process").finish(grant)?.into_inner();
        let parent = api.tracer.as_ref().map(|_| trace_parent(metadata.as_ref())).unwrap_or_default();
        let exchange = Exchange::new(requests, Arc::clone(&self.0), (grant, client), parent);
        Ok(Response::new(Exchanges { state: State::Idle(Box::new(exchange)) }))
    }
}

/// Largest message: a buffered body beyond the limit is not parsed, and its request is still routed.
pub(super) const fn messages_bytes_max(body_bytes_max: usize) -> usize {
    2 * body_bytes_max
}

type NextResponse = Option<Result<ProcessingResponse, Status>>;

/// Responses of one exchange, in their order. A message is read only after the responses before it were taken.
pub(super) struct Exchanges {
    state: State,
}

enum State {
    Idle(Box<Exchange>),
    Running(Pin<Box<dyn Future<Output = (Box<Exchange>, NextResponse)> + Send>>),
    Ended,
}

impl Stream for Exchanges {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextResponse> {
        if let State::Idle(_) = self.state
            && let State::Idle(mut exchange) = std::mem::replace(&mut self.state, State::Ended)
        {
            self.state = State::Running(Box::pin(async move {
                let next = exchange.next().await;
                (exchange, next)
            }));
        }
        let State::Running(running) = &mut self.state else { return Poll::Ready(None) };
        let (exchange, next) = ready!(running.as_mut().poll(context));
        self.state = match next {
            Some(Ok(_)) => State::Idle(exchange),
            Some(Err(_)) | None => State::Ended,
        };
        Poll::Ready(next)
    }
}
