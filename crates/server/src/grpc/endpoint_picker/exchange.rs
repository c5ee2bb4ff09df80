//! The parts of one HTTP request and its response, and their handling.
//!
//! A gateway whose filter has the mode `FULL_DUPLEX_STREAMED` sends the body chunk by chunk, and holds the request until its
//! headers are answered. They are answered when the body has ended, and its chunks follow. In the mode `BUFFERED` headers are
//! answered at once, and the answer to the body has the address. In any other mode headers are answered with the instance of least load, and
//! with a request for the mode `BUFFERED`, which the filter may grant.
//!
//! Parts of the response are passed on as they arrive.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::Bytes;
use flash_indexer_access::Grant;
use flash_indexer_admission::{BodyBytes, READ_DEADLINE};
use flash_indexer_proto::ext_proc::processing_mode::{BodySendMode, HeaderSendMode};
use flash_indexer_proto::ext_proc::processing_request::Request;
use flash_indexer_proto::ext_proc::processing_response::Response;
use flash_indexer_proto::ext_proc::{
    CommonResponse, HttpBody, HttpHeaders, ProcessingMode, ProcessingRequest, ProcessingResponse, TrailersResponse,
};
use flash_indexer_telemetry::metrics::{Limit, PickOutcome};
use flash_indexer_traces::TraceParent;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::choice::{InFlight, PickInput, PickedInstance, Picker};
use super::messages::{
    Subset, chunk, destination_metadata, header, plain, refusal, request_body, request_headers, response_body,
    response_headers, with_destination,
};
use super::{NextResponse, Requests};
use crate::http::OpenAiEndpoint;
use crate::traced::finish_rpc;

/// The method, as spans name it. A span covers the choice of an instance: the exchange lasts until the engine has answered.
const METHOD: &str = "envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Longest chunk of a body that is sent back. Envoy's own chunks are at most as long.
const CHUNK_BYTES: usize = 60 << 10;

/// One HTTP request and its response.
pub(super) struct Exchange {
    requests: Requests<ProcessingRequest>,
    picker: Arc<Picker>,
    client: (Arc<Grant>, Option<IpAddr>),
    /// Trace context of the gateway's call, or of its client's request.
    trace_parent: TraceParent,
    modes: Modes,
    subset: Option<Subset>,
    endpoint: Option<OpenAiEndpoint>,
    body: RequestBody,
    responses: VecDeque<PendingResponse>,
    /// The request in flight, until its response has ended.
    in_flight: Option<InFlight>,
    has_ended: bool,
}

/// How the filter sends bodies.
#[derive(Debug, Clone, Copy)]
struct Modes {
    request: BodySendMode,
    response: BodySendMode,
}

/// The body of a request.
enum RequestBody {
    /// Not asked for, or passed on as it comes.
    Passed,
    /// One message will have it.
    Awaited,
    /// Received chunk by chunk until it has ended.
    Collected(BodyState),
}

/// Received part of a body.
struct BodyState {
    received: Vec<u8>,
    reserved: BodyBytes,
    deadline: Instant,
}

/// A response that waits to be sent.
enum PendingResponse {
    Message(Box<ProcessingResponse>),
    /// A body that is sent back in chunks.
    Body {
        rest: Bytes,
        ends: bool,
        _reserved: BodyBytes,
    },
}

impl Exchange {
    pub(super) fn new(
        requests: Requests<ProcessingRequest>,
        picker: Arc<Picker>,
        client: (Arc<Grant>, Option<IpAddr>),
        trace_parent: TraceParent,
    ) -> Self {
        Self {
            requests,
            picker,
            client,
            trace_parent,
            modes: Modes { request: BodySendMode::None, response: BodySendMode::None },
            subset: None,
            endpoint: None,
            body: RequestBody::Passed,
            responses: VecDeque::new(),
            in_flight: None,
            has_ended: false,
        }
    }

    /// The next response; none at the end of the exchange.
    pub(super) async fn next(&mut self) -> NextResponse {
        loop {
            if let Some(response) = self.next_response() {
                return Some(Ok(response));
            }
            if self.has_ended {
                return None;
            }
            match self.receive().await {
                Ok(Some(message)) => self.process(message).await,
                Ok(None) => self.has_ended = true,
                Err(status) => return Some(Err(status)),
            }
        }
    }

    fn next_response(&mut self) -> Option<ProcessingResponse> {
        match self.responses.pop_front()? {
            PendingResponse::Message(message) => Some(*message),
            PendingResponse::Body { mut rest, ends, _reserved } => {
                let part = rest.split_to(rest.len().min(CHUNK_BYTES)).to_vec();
                let is_last = rest.is_empty();
                if !is_last {
                    self.responses.push_front(PendingResponse::Body { rest, ends, _reserved });
                }
                Some(plain(request_body(chunk(part, is_last && ends))))
            }
        }
    }

    /// The next message; none at the end of the stream. While a body is collected, its deadline ends the wait.
    async fn receive(&mut self) -> Result<Option<ProcessingRequest>, Status> {
        let requests = &mut self.requests;
        let next = poll_fn(|context| requests.poll_next(context));
        let RequestBody::Collected(BodyState { deadline, .. }) = &self.body else {
            return next.await.transpose();
        };
        if let Ok(next) = tokio::time::timeout_at(*deadline, next).await {
            return next.transpose();
        }
        self.pass_on(PickOutcome::TooSlow).await;
        // A message without a part: the responses are sent next.
        Ok(Some(ProcessingRequest::default()))
    }

    async fn process(&mut self, message: ProcessingRequest) {
        if let Some(config) = &message.protocol_config {
            self.modes = Modes { request: config.request_body_mode(), response: config.response_body_mode() };
        }
        if let Some(metadata) = &message.metadata_context {
            self.subset = Subset::of(metadata).or(self.subset.take());
        }
        match message.request {
            Some(Request::RequestHeaders(headers)) => self.process_headers(&headers).await,
            Some(Request::RequestBody(body)) => self.process_body(body).await,
            Some(Request::RequestTrailers(_)) => {
                self.end_collected_body(false).await;
                self.send(plain(Response::RequestTrailers(TrailersResponse::default())));
            }
            Some(Request::ResponseHeaders(headers)) => self.process_response_headers(headers.end_of_stream),
            Some(Request::ResponseBody(body)) => self.process_response_body(body),
            Some(Request::ResponseTrailers(_)) => {
                self.in_flight = None;
                self.send(plain(Response::ResponseTrailers(TrailersResponse::default())));
            }
            None => {}
        }
    }

    async fn process_headers(&mut self, headers: &HttpHeaders) {
        self.endpoint = header(headers.headers.as_ref(), ":path").and_then(OpenAiEndpoint::of);
        if self.picker.api.tracer.is_some() {
            let of_client = TraceParent::read(|name| header(headers.headers.as_ref(), name).into_iter());
            self.trace_parent = std::mem::take(&mut self.trace_parent).or(of_client);
        }
        if headers.end_of_stream {
            return self.answer_headers(Err(PickOutcome::NoPrompt), None).await;
        }
        match self.modes.request {
            BodySendMode::FullDuplexStreamed if self.endpoint.is_none() => {
                // Its body has no prompt.
                self.answer_headers(Err(PickOutcome::NoPrompt), None).await;
            }
            BodySendMode::FullDuplexStreamed => {
                let reserved = self.picker.api.bodies.budget.body(self.client.1);
                let deadline = Instant::now() + READ_DEADLINE;
                self.body = RequestBody::Collected(BodyState { received: Vec::new(), reserved, deadline });
            }
            BodySendMode::Buffered | BodySendMode::BufferedPartial => {
                self.body = RequestBody::Awaited;
                self.send(plain(request_headers(CommonResponse::default())));
            }
            BodySendMode::None | BodySendMode::Streamed => {
                self.body = RequestBody::Awaited;
                let mode = ProcessingMode {
                    request_body_mode: BodySendMode::Buffered.into(),
                    response_header_mode: HeaderSendMode::Send.into(),
                    response_trailer_mode: HeaderSendMode::Send.into(),
                    ..ProcessingMode::default()
                };
                self.answer_headers(Err(PickOutcome::BodyNotSent), Some(mode)).await;
            }
        }
    }

    async fn process_body(&mut self, HttpBody { body, end_of_stream }: HttpBody) {
        match &mut self.body {
            RequestBody::Passed if self.modes.request == BodySendMode::FullDuplexStreamed => {
                self.send(plain(request_body(chunk(body, end_of_stream))));
            }
            RequestBody::Passed => self.send(plain(request_body(CommonResponse::default()))),
            RequestBody::Awaited => {
                self.body = RequestBody::Passed;
                if self.modes.request == BodySendMode::Streamed && !end_of_stream {
                    return self.send(plain(request_body(CommonResponse::default())));
                }
                let body = match self.endpoint {
                    None => Err(PickOutcome::NoPrompt),
                    Some(_) if body.len() > self.picker.api.bodies.bytes_max => {
                        self.picker.api.indexer.metrics().limit_reached(Limit::BodyBytes);
                        Err(PickOutcome::TooLarge)
                    }
                    Some(endpoint) => Ok((endpoint, Bytes::from(body))),
                };
                if let Some(address) = self.choose(body).await {
                    let mut response = plain(request_body(with_destination(address)));
                    response.dynamic_metadata = Some(destination_metadata(address));
                    self.send(response);
                }
            }
            RequestBody::Collected(collected) => {
                let is_too_large = collected.received.len() + body.len() > self.picker.api.bodies.bytes_max;
                if is_too_large {
                    self.picker.api.indexer.metrics().limit_reached(Limit::BodyBytes);
                }
                if is_too_large || collected.reserved.add(body.len()).is_err() {
                    self.pass_on(PickOutcome::TooLarge).await;
                    if !self.has_ended {
                        self.send(plain(request_body(chunk(body, end_of_stream))));
                    }
                    return;
                }
                collected.received.extend_from_slice(&body);
                if end_of_stream {
                    self.end_collected_body(true).await;
                }
            }
        }
    }

    /// Answers the headers of a request whose body is collected and has ended, and sends the body back. `ends` says whether no
    /// trailers follow.
    async fn end_collected_body(&mut self, ends: bool) {
        let (RequestBody::Collected(_), Some(endpoint)) = (&self.body, self.endpoint) else { return };
        let RequestBody::Collected(collected) = std::mem::replace(&mut self.body, RequestBody::Passed) else { return };
        let body = Bytes::from(collected.received);
        self.answer_headers(Ok((endpoint, body.clone())), None).await;
        self.send_back(body, ends, collected.reserved);
    }

    /// Answers the headers of a request whose body is collected and will not be parsed, and sends back the part that has arrived.
    async fn pass_on(&mut self, outcome: PickOutcome) {
        let RequestBody::Collected(collected) = std::mem::replace(&mut self.body, RequestBody::Passed) else { return };
        self.answer_headers(Err(outcome), None).await;
        self.send_back(Bytes::from(collected.received), false, collected.reserved);
    }

    fn send_back(&mut self, rest: Bytes, ends: bool, reserved: BodyBytes) {
        if !self.has_ended && (ends || !rest.is_empty()) {
            self.responses.push_back(PendingResponse::Body { rest, ends, _reserved: reserved });
        }
    }

    async fn answer_headers(
        &mut self,
        body: Result<(OpenAiEndpoint, Bytes), PickOutcome>,
        mode_override: Option<ProcessingMode>,
    ) {
        if let Some(address) = self.choose(body).await {
            let response = plain(request_headers(with_destination(address)));
            let dynamic_metadata = Some(destination_metadata(address));
            self.send(ProcessingResponse { dynamic_metadata, mode_override, ..response });
        }
    }

    /// The address of the instance for the request. Without one, the client is answered, and the exchange ends.
    async fn choose(&mut self, body: Result<(OpenAiEndpoint, Bytes), PickOutcome>) -> Option<SocketAddr> {
        // The body replaces an earlier choice, which must not count as load.
        self.in_flight = None;
        let input = PickInput { body, subset: self.subset.clone(), client: self.client.clone() };
        let tracer = self.picker.api.tracer.as_ref();
        let traced = tracer.and_then(|tracer| tracer.rpc(&self.trace_parent, METHOD, None));
        let choice = Arc::clone(&self.picker).choose(input);
        let chosen = match &traced {
            None => choice.await,
            Some(traced) => traced.within(choice).await,
        };
        if let Some(traced) = traced {
            // A refusal is an answer to the gateway's client.
            finish_rpc(&traced, Code::Ok);
        }
        match chosen {
            Ok(PickedInstance { address, in_flight }) => {
                self.in_flight = Some(in_flight);
                Some(address)
            }
            Err(refused) => {
                let (code, message) = refused.answer();
                self.send(plain(refusal(code, message)));
                self.has_ended = true;
                None
            }
        }
    }

    fn process_response_headers(&mut self, is_end: bool) {
        let mut response = plain(response_headers());
        if is_end {
            self.in_flight = None;
        } else if !matches!(self.modes.response, BodySendMode::None | BodySendMode::FullDuplexStreamed) {
            // The trailers, or the end of the stream, show when the request has finished.
            response.mode_override = Some(ProcessingMode {
                response_trailer_mode: HeaderSendMode::Send.into(),
                ..ProcessingMode::default()
            });
        }
        self.send(response);
    }

    fn process_response_body(&mut self, HttpBody { body, end_of_stream }: HttpBody) {
        if let Some(in_flight) = &self.in_flight
            && !body.is_empty()
        {
            in_flight.end_prefill();
        }
        if end_of_stream {
            self.in_flight = None;
        }
        let is_duplex = self.modes.response == BodySendMode::FullDuplexStreamed;
        let response = if is_duplex { chunk(body, end_of_stream) } else { CommonResponse::default() };
        self.send(plain(response_body(response)));
    }

    fn send(&mut self, response: ProcessingResponse) {
        self.responses.push_back(PendingResponse::Message(Box::new(response)));
    }
}
