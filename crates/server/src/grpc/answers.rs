//! Response stream of `QueryStream`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use flash_indexer_grpc_bodies::SharedBody;
use flash_indexer_traces::{RequestSpan, Stage, TraceParent, stage_begin, stage_since};
use futures_core::Stream;
use prost::Message;
use tonic::codec::{Codec, CompressionEncoding};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::proto::{Error, QueryRequest, QueryResponse};
use super::status::authorization;
use super::{GrpcState, until_true};
use crate::traced::{finish_rpc, trace_parent};

/// Responses to a stream of requests, in their order. A request is read only after the response before it was taken, so a
/// client that does not read its responses is back-pressured.
pub(super) struct Answers {
    requests: Requests<QueryRequest>,
    /// Value of the stream's `authorization` header.
    authorization: Option<Arc<[u8]>>,
    shared: GrpcState,
    /// Response that is waiting for the shared store.
    pending: Option<Pin<Box<dyn Future<Output = QueryResponse> + Send>>>,
    /// Trace context of the stream's caller.
    trace_parent: TraceParent,
    /// Time of the last poll for a message, if requests are traced.
    parse_begin: Option<SystemTime>,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    has_ended: bool,
}

impl Answers {
    pub(super) fn to(requests: Requests<QueryRequest>, metadata: &MetadataMap, shared: &GrpcState) -> Self {
        let authorization = authorization(metadata).map(Arc::from);
        let trace_parent = shared.tracer.as_ref().map(|_| trace_parent(metadata.as_ref())).unwrap_or_default();
        let stopped = Box::pin(until_true(shared.stopping.clone()));
        Self {
            requests,
            authorization,
            shared: shared.clone(),
            pending: None,
            trace_parent,
            parse_begin: None,
            stopped,
            has_ended: false,
        }
    }

    /// Begins the span of the message that was decoded.
    fn trace(&mut self) -> Option<RequestSpan> {
        let tracer = self.shared.tracer.as_ref()?;
        let parse_begin = self.requests.body.take_parse_begin().or(self.parse_begin);
        let traced = tracer.rpc(&self.trace_parent, METHOD, parse_begin)?;
        if let Some(begin) = parse_begin {
            let _request = traced.attach();
            drop(stage_since(Stage::Parse, begin));
        }
        Some(traced)
    }

    fn poll_pending(&mut self, context: &mut Context<'_>) -> Poll<Option<QueryResponse>> {
        let Some(pending) = &mut self.pending else { return Poll::Ready(None) };
        let answer = ready!(pending.as_mut().poll(context));
        self.pending = None;
        Poll::Ready(Some(answer))
    }
}

impl Stream for Answers {
    type Item = Result<QueryResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if self.stopped.as_mut().poll(context).is_ready() {
            self.has_ended = true;
            return Poll::Ready(Some(Err(Status::unavailable("the service is stopping; ask another replica"))));
        }
        if let Some(answer) = ready!(self.poll_pending(context)) {
            return Poll::Ready(Some(Ok(answer)));
        }
        // A message that was received with the one before is decoded from here on.
        self.parse_begin = self.shared.tracer.as_ref().and_then(|_| stage_begin());
        let request = match ready!(self.requests.poll_next(context)) {
            Some(Ok(request)) => request,
            end => {
                self.has_ended = true;
                return Poll::Ready(end.map(|failed| failed.map(|_| QueryResponse::default())));
            }
        };
        let in_flight = self.shared.in_flight("QueryStream");
        let traced = self.trace();
        if !self.shared.indexer.is_shared() {
            let _request = traced.as_ref().map(RequestSpan::attach);
            let answer = self.shared.query_local(&request, self.authorization.as_deref());
            return Poll::Ready(Some(Ok(in_stream(&request, finish(in_flight.finish(answer), traced.as_ref())))));
        }
        let (shared, authorization) = (self.shared.clone(), self.authorization.clone());
        self.pending = Some(Box::pin(async move {
            let answer = shared.query(&request, authorization.as_deref());
            let answer = match &traced {
                None => answer.await,
                Some(traced) => traced.within(answer).await,
            };
            in_stream(&request, finish(in_flight.finish(answer), traced.as_ref()))
        }));
        self.poll_pending(context).map(|answer| answer.map(Ok))
    }
}

/// The method, as spans name it.
const METHOD: &str = "flash_indexer.v1.RouterService/QueryStream";

/// Ends the span of a request.
fn finish<T>(answer: Result<T, Status>, traced: Option<&RequestSpan>) -> Result<T, Status> {
    if let Some(traced) = traced {
        finish_rpc(traced, answer.as_ref().map_or_else(Status::code, |_| Code::Ok));
    }
    answer
}

/// Requests of a stream. The buffers in which a long message was gathered and decompressed are not kept for the next one, so
/// an idle stream keeps little memory.
pub(super) struct Requests<T> {
    messages: Streaming<T>,
    body: SharedBody,
    encoding: Option<CompressionEncoding>,
    bytes_max: usize,
}

impl<T: Message + Default + 'static> Requests<T> {
    /// Reads the requests of a call's body; a decompressed one has at most `bytes_max` bytes.
    pub(super) fn of(request: Request<Streaming<T>>, bytes_max: usize) -> (MetadataMap, Self) {
        let (metadata, mut extensions, messages) = request.into_parts();
        let body = extensions.remove().expect("the body of every stream is shared with its handler");
        // Other encodings were refused.
        let encoding = metadata.get("grpc-encoding").and_then(|encoding| match encoding.as_bytes() {
            b"gzip" => Some(CompressionEncoding::Gzip),
            b"zstd" => Some(CompressionEncoding::Zstd),
            _ => None,
        });
        (metadata, Self { messages, body, encoding, bytes_max })
    }

    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, Status>>> {
        let next = ready!(Pin::new(&mut self.messages).poll_next(context));
        if self.body.take_ended_long_message() && matches!(next, Some(Ok(_))) {
            let decoder = ProstCodec::<T, T>::default().decoder();
            self.messages = Streaming::new_request(decoder, self.body.clone(), self.encoding, Some(self.bytes_max));
        }
        Poll::Ready(next)
    }
}

/// Converts a failure to a response with an error. The stream then continues.
fn in_stream(request: &QueryRequest, answer: Result<Response<QueryResponse>, Status>) -> QueryResponse {
    answer.map(Response::into_inner).unwrap_or_else(|status| QueryResponse {
        request_id: request.request_id,
        error: Some(Error { code: status.code().into(), message: status.message().to_owned() }),
        ..QueryResponse::default()
    })
}
