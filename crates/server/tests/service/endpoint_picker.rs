//! The endpoint picker answers a gateway as Envoy's external processing requires.

use flash_indexer_access::{NewToken, Scope};
use flash_indexer_proto::ext_proc::body_mutation::Mutation;
use flash_indexer_proto::ext_proc::processing_mode::BodySendMode;
use flash_indexer_proto::ext_proc::processing_request::Request;
use flash_indexer_proto::ext_proc::processing_response::Response as Part;
use flash_indexer_proto::ext_proc::{
    CommonResponse, HeaderMap, HeaderMutation, HeaderValue, HttpBody, HttpHeaders, HttpTrailers, Metadata,
    ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
};
use flash_indexer_proto::google::value::Kind;
use flash_indexer_proto::google::{Struct, Value};
use flash_indexer_server::{EndpointPickerOptions, OtlpOptions, ServerOptions};
use flash_indexer_test_support::wait_for;
use serde_json::json;
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::grpc::Sent;
use crate::support::fake_collector::{FakeCollector, hex};
use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, stored, tokens};

const COMPLETIONS: &str = "/v1/completions";
const DESTINATION: &str = "x-gateway-destination-endpoint";
const DUPLEX: BodySendMode = BodySendMode::FullDuplexStreamed;

fn options() -> ServerOptions {
    let picker = EndpointPickerOptions {
        address: "127.0.0.1:0".parse().expect("an address"),
        target_port: 8000,
        model_name: "m".to_owned(),
        tenant_id: "default".to_owned(),
        requests_max: None,
    };
    ServerOptions { endpoint_picker: Some(picker), ..ServerOptions::default() }
}

/// A service with instances without events, which are always ready.
fn service_with(instances: &[&str], options: ServerOptions) -> Service {
    let service = Service::start_with(options);
    for instance in instances {
        register(&service, instance, "m");
    }
    service
}

fn register(service: &Service, instance: &str, model: &str) {
    let body = json!({ "instance_id": instance, "model_name": model, "block_size": BLOCK_TOKENS, "events": "none" });
    assert_eq!(service.post("/register", &body).0, 201);
}

/// Calls the picker as Envoy does.
async fn process(
    channel: Channel,
    request: tonic::Request<Sent<ProcessingRequest>>,
) -> Result<Streaming<ProcessingResponse>, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    let path = PathAndQuery::from_static("/envoy.service.ext_proc.v3.ExternalProcessor/Process");
    client.streaming(request, path, ProstCodec::default()).await.map(tonic::Response::into_inner)
}

/// One HTTP request at a gateway.
struct Exchange<'s> {
    service: &'s Service,
    requests: mpsc::Sender<ProcessingRequest>,
    responses: Streaming<ProcessingResponse>,
    config: Option<ProtocolConfiguration>,
    metadata: Option<Metadata>,
    /// Header `traceparent` of the request.
    trace_parent: Option<String>,
}

impl<'s> Exchange<'s> {
    fn new(service: &'s Service, request: BodySendMode, response: BodySendMode) -> Self {
        let address = service.server().endpoint_picker_address().expect("it was asked for");
        let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
        let (requests, sent) = mpsc::channel(64);
        let responses = service.block_on(async {
            let channel = endpoint.connect().await.expect("a connection");
            process(channel, tonic::Request::new(Sent(sent))).await.expect("a stream")
        });
        let config = ProtocolConfiguration { request_body_mode: request.into(), response_body_mode: response.into() };
        Self { service, requests, responses, config: Some(config), metadata: None, trace_parent: None }
    }

    fn duplex(service: &'s Service) -> Self {
        Self::new(service, DUPLEX, DUPLEX)
    }

    /// Permits only these addresses.
    fn with_subset(mut self, subset: &str) -> Self {
        let value = Value { kind: Some(Kind::StringValue(subset.to_owned())) };
        let fields = [("x-gateway-destination-endpoint-subset".to_owned(), value)].into();
        self.metadata =
            Some(Metadata { filter_metadata: [("envoy.lb.subset_hint".to_owned(), Struct { fields })].into() });
        self
    }

    fn send(&mut self, request: Request) {
        let request = ProcessingRequest {
            request: Some(request),
            metadata_context: self.metadata.clone(),
            protocol_config: self.config.take(),
        };
        self.service.block_on(self.requests.send(request)).expect("the stream is open");
    }

    fn send_headers(&mut self, path: &str, end_of_stream: bool) {
        let header = |key: &str, value: &str| HeaderValue {
            key: key.to_owned(),
            value: String::new(),
            raw_value: value.as_bytes().to_vec(),
        };
        let mut headers =
            vec![header(":method", "POST"), header(":path", path), header("content-type", "application/json")];
        headers.extend(self.trace_parent.iter().map(|parent| header("traceparent", parent)));
        self.send(Request::RequestHeaders(HttpHeaders { headers: Some(HeaderMap { headers }), end_of_stream }));
    }

    fn send_body(&mut self, body: &[u8], end_of_stream: bool) {
        self.send(Request::RequestBody(HttpBody { body: body.to_vec(), end_of_stream }));
    }

    fn next(&mut self) -> Option<ProcessingResponse> {
        let next =
            async { tokio::time::timeout(PATIENCE, self.responses.message()).await.expect("a response in time") };
        self.service.block_on(next).expect("no error")
    }

    fn response(&mut self) -> Part {
        self.next().expect("a response").response.expect("a part")
    }

    /// The address in the answer to the request's headers.
    fn destination(&mut self) -> String {
        let answer = self.next().expect("a response");
        let Some(Part::RequestHeaders(headers)) = &answer.response else { panic!("{answer:?}") };
        destination(&answer, headers.response.as_ref())
    }

    /// The body that is sent back, until its end.
    fn returned_body(&mut self) -> Vec<u8> {
        let mut returned = Vec::new();
        loop {
            let Part::RequestBody(body) = self.response() else { panic!("a part of the body") };
            let (chunk, is_end) = streamed(body.response);
            returned.extend(chunk);
            if is_end {
                return returned;
            }
        }
    }

    /// Sends a completion with this body in one chunk, and returns its destination.
    fn complete(&mut self, body: &[u8]) -> String {
        self.send_headers(COMPLETIONS, false);
        self.send_body(body, true);
        let destination = self.destination();
        assert_eq!(self.returned_body(), body);
        destination
    }
}

fn streamed(response: Option<CommonResponse>) -> (Vec<u8>, bool) {
    let mutation = response.and_then(|response| response.body_mutation).and_then(|body| body.mutation);
    let Some(Mutation::StreamedResponse(streamed)) = mutation else { panic!("no chunk: {mutation:?}") };
    (streamed.body, streamed.end_of_stream)
}

/// The address in an answer's header and metadata.
fn destination(answer: &ProcessingResponse, response: Option<&CommonResponse>) -> String {
    let Some(HeaderMutation { set_headers }) = response.and_then(|response| response.header_mutation.as_ref()) else {
        panic!("no header: {answer:?}")
    };
    let header = set_headers[0].header.as_ref().expect("a header");
    assert_eq!((set_headers.len(), header.key.as_str()), (1, DESTINATION));
    let address = String::from_utf8(header.raw_value.clone()).expect("text");
    let namespace = &answer.dynamic_metadata.as_ref().expect("metadata").fields["envoy.lb"];
    let Some(Kind::StructValue(namespace)) = &namespace.kind else { panic!("{namespace:?}") };
    assert_eq!(namespace.fields[DESTINATION].kind, Some(Kind::StringValue(address.clone())));
    address
}

fn completion(blocks: &[u64]) -> Vec<u8> {
    json!({ "model": "m", "prompt": tokens(blocks), "stream": true }).to_string().into_bytes()
}

/// Number of picks with an outcome.
fn picks(service: &Service, outcome: &str) -> f64 {
    service.metrics().value("flash_indexer_endpoint_picks_total", &[("outcome", outcome)])
}

/// Requests in flight of all instances.
fn in_flight(service: &Service) -> u64 {
    let body = json!({ "model": "m", "token_ids": [], "detail": true });
    let (status, answer) = service.post("/pick", &body);
    assert_eq!(status, 200, "{answer}");
    let candidates = answer["candidates"].as_array().expect("a list");
    candidates.iter().map(|candidate| candidate["load"]["requests"].as_u64().expect("a number")).sum()
}

/// The address of an engine that is registered by its name alone.
fn address_of(engine: &Engine) -> String {
    assert!(engine.publisher.endpoint().starts_with("tcp://127.0.0.1:"));
    "127.0.0.1:8000".to_owned()
}

#[test]
fn the_choice_for_a_request_is_a_span_of_its_trace() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let collector = FakeCollector::start();
    let traces = OtlpOptions::to(collector.url().parse().expect("a URL"));
    let service = service_with(&["10.0.0.1"], ServerOptions { traces: Some(traces), ..options() });
    let mut exchange = Exchange::duplex(&service);
    exchange.trace_parent = Some(format!("00-{TRACE}-00f067aa0ba902b7-01"));
    exchange.complete(json!({ "model": "m", "prompt": tokens(&[1, 2]) }).to_string().as_bytes());
    // The exchange continues, and its choice has ended.
    let trace = collector.wait_for_trace(TRACE);
    assert_eq!(trace.root.name, "envoy.service.ext_proc.v3.ExternalProcessor/Process");
    assert_eq!(hex(&trace.root.parent_span_id), "00f067aa0ba902b7");
    assert_eq!(trace.stage_names(), ["parse", "hash", "lookup"]);
    assert_eq!(trace.attributes()["gen_ai.request.model"], json!("m"));
    drop(exchange);
}

#[test]
fn a_streamed_body_goes_to_the_instance_that_holds_its_prefix() {
    let service = service_with(&["10.0.0.1:9000", "10.0.0.2"], options());
    let holder = Engine::registered(&service, json!("holder"), 0, &json!({}));
    holder.say(&service, 0, &[stored(None, &[1, 2, 3])]);
    let body = completion(&[1, 2, 3, 4]);
    let mut exchange = Exchange::duplex(&service);
    exchange.send_headers(COMPLETIONS, false);
    for part in body.chunks(16) {
        exchange.send_body(part, false);
    }
    exchange.send_body(b"", true);
    assert_eq!(exchange.destination(), address_of(&holder));
    assert_eq!(exchange.returned_body(), body);
    assert_eq!((picks(&service, "scored"), in_flight(&service)), (1.0, 1));

    drop(exchange);
    wait_for("the end of the request", PATIENCE, || (in_flight(&service) == 0).then_some(()));

    // Fields of the engine that have another meaning or type here.
    let sampled =
        json!({ "model": "m", "prompt": tokens(&[1, 2, 3]), "top_k": -1, "pods": "x", "request_id": 7, "ttl_ms": "x" });
    assert_eq!(Exchange::duplex(&service).complete(sampled.to_string().as_bytes()), address_of(&holder));
    assert_eq!(picks(&service, "scored"), 2.0);

    // Trailers end a body as well.
    let mut with_trailers = Exchange::duplex(&service);
    with_trailers.send_headers(COMPLETIONS, false);
    with_trailers.send_body(&completion(&[1, 2, 3]), false);
    with_trailers.send(Request::RequestTrailers(HttpTrailers::default()));
    assert_eq!(with_trailers.destination(), address_of(&holder));
    let Part::RequestBody(sent_back) = with_trailers.response() else { panic!("the body") };
    assert_eq!(streamed(sent_back.response), (completion(&[1, 2, 3]), false));
    assert!(matches!(with_trailers.response(), Part::RequestTrailers(_)));

    // The holder's requests in flight outweigh a single block.
    let other = Exchange::duplex(&service).complete(&completion(&[1]));
    assert_ne!(other, address_of(&holder));
}

#[test]
fn a_buffered_body_is_answered_with_the_destination() {
    let service = service_with(&["10.0.0.1", "10.0.0.2"], options());
    let holder = Engine::registered(&service, json!("holder"), 0, &json!({}));
    holder.say(&service, 0, &[stored(None, &[1, 2, 3])]);
    let mut exchange = Exchange::new(&service, BodySendMode::Buffered, BodySendMode::None);
    exchange.send_headers(COMPLETIONS, false);
    let Part::RequestHeaders(headers) = exchange.response() else { panic!("an answer to the headers") };
    assert_eq!(headers.response, Some(CommonResponse::default()), "it continues");
    exchange.send_body(&completion(&[1, 2, 3]), true);
    let answer = exchange.next().expect("an answer");
    let Some(Part::RequestBody(body)) = &answer.response else { panic!("{answer:?}") };
    assert_eq!(destination(&answer, body.response.as_ref()), address_of(&holder));
}

#[test]
fn a_gateway_that_sends_no_body_is_asked_for_it_and_has_a_destination_without_it() {
    let service = service_with(&["10.0.0.1"], options());
    let holder = Engine::registered(&service, json!("holder"), 0, &json!({}));
    holder.say(&service, 0, &[stored(None, &[1, 2, 3])]);
    let mut exchange = Exchange::new(&service, BodySendMode::None, BodySendMode::None);
    exchange.send_headers(COMPLETIONS, false);
    let answer = exchange.next().expect("an answer");
    let Some(Part::RequestHeaders(headers)) = &answer.response else { panic!("{answer:?}") };
    destination(&answer, headers.response.as_ref());
    assert_eq!(answer.mode_override.expect("another mode").request_body_mode(), BodySendMode::Buffered);
    assert_eq!((picks(&service, "body_not_sent"), in_flight(&service)), (1.0, 1));
    exchange.send_body(&completion(&[1, 2, 3]), true);
    let answer = exchange.next().expect("an answer");
    let Some(Part::RequestBody(body)) = &answer.response else { panic!("{answer:?}") };
    assert_eq!(destination(&answer, body.response.as_ref()), address_of(&holder));
    assert_eq!(in_flight(&service), 1, "the first choice is no load any more");
}

#[test]
fn a_request_that_cannot_be_scored_goes_to_the_instance_of_least_load() {
    let limited = ServerOptions { body_bytes_max: 4 << 10, ..options() };
    let service = service_with(&["10.0.0.1", "10.0.0.2"], limited);
    let mut busy = Exchange::duplex(&service).with_subset("10.0.0.1");
    assert_eq!(busy.complete(&completion(&[1, 2, 3])), "10.0.0.1:8000");
    let large = completion(&(0..300).collect::<Vec<_>>());
    assert!((4 << 10..8 << 10).contains(&large.len()));
    let empty_chat = json!({ "model": "m", "messages": [] }).to_string();
    let chat_with_suffix = json!({ "model": "m", "messages": [], "suffix": 5 }).to_string();
    for (path, body, outcome) in [
        (COMPLETIONS, &b"no JSON"[..], "invalid_body"),
        (COMPLETIONS, br#"{"model": "m"}"#, "invalid_body"),
        (COMPLETIONS, br#"{"prompt": [1]}"#, "invalid_body"),
        (COMPLETIONS, b"", "invalid_body"),
        (COMPLETIONS, br#"{"model": "m", "prompt": "a text without a tokenizer"}"#, "failed"),
        (COMPLETIONS, br#"{"model": "m", "prompt": [1], "suffix": 5}"#, "invalid_body"),
        ("/v1/chat/completions?x=1", empty_chat.as_bytes(), "failed"),
        // Engines ignore it in a chat.
        ("/v1/chat/completions", chat_with_suffix.as_bytes(), "failed"),
        (COMPLETIONS, &large, "too_large"),
        ("/v1/embeddings", br#"{"model": "m", "input": "x"}"#, "no_prompt"),
    ] {
        let before = picks(&service, outcome);
        let mut exchange = Exchange::duplex(&service);
        exchange.send_headers(path, false);
        exchange.send_body(body, true);
        assert_eq!(exchange.destination(), "10.0.0.2:8000", "{outcome}");
        assert_eq!(exchange.returned_body(), body, "{outcome}: the engine answers it");
        assert_eq!(picks(&service, outcome), before + 1.0, "{path}");
        drop(exchange);
        wait_for("the end of the request", PATIENCE, || (in_flight(&service) == 1).then_some(()));
    }
    let mut without_body = Exchange::duplex(&service);
    without_body.send_headers("/v1/models", true);
    assert_eq!(without_body.destination(), "10.0.0.2:8000");
    let reached = service.metrics().value("flash_indexer_limit_reached_total", &[("limit", "body_bytes")]);
    assert_eq!(reached, 1.0);

    // A buffered body arrives in one message.
    let mut buffered = Exchange::new(&service, BodySendMode::Buffered, BodySendMode::None);
    buffered.send_headers(COMPLETIONS, false);
    assert!(matches!(buffered.response(), Part::RequestHeaders(_)));
    buffered.send_body(&large, true);
    let answer = buffered.next().expect("an answer");
    let Some(Part::RequestBody(body)) = &answer.response else { panic!("{answer:?}") };
    destination(&answer, body.response.as_ref());
    assert_eq!(picks(&service, "too_large"), 2.0);
}

#[test]
fn a_model_that_is_not_registered_is_an_adapter_of_the_base_model() {
    let service = service_with(&["10.0.0.1"], options());
    register(&service, "10.0.0.2", "other");
    let body = |model: &str| json!({ "model": model, "prompt": tokens(&[1]) }).to_string().into_bytes();
    assert_eq!(Exchange::duplex(&service).complete(&body("adapter")), "10.0.0.1:8000");
    assert_eq!(Exchange::duplex(&service).complete(&body("other")), "10.0.0.2:8000");
    assert_eq!(picks(&service, "scored"), 2.0);

    // Without a base model it goes to any instance, and its engine answers that it has no such model.
    let service = Service::start_with(options());
    register(&service, "10.0.0.3", "a");
    register(&service, "10.0.0.4", "b");
    let destination = Exchange::duplex(&service).complete(&body("unknown"));
    assert!(["10.0.0.3:8000", "10.0.0.4:8000"].contains(&destination.as_str()));
    assert_eq!(picks(&service, "unknown_model"), 1.0);
}

#[test]
fn a_subset_limits_the_choice() {
    let service = service_with(&["10.0.0.1", "10.0.0.2", "10.0.0.3:9000"], options());
    let body = completion(&[1]);
    for (subset, expected) in [("10.0.0.2:8000", "10.0.0.2:8000"), ("10.0.0.9, 10.0.0.3:9000", "10.0.0.3:9000")] {
        assert_eq!(Exchange::duplex(&service).with_subset(subset).complete(&body), expected);
    }
    for subset in ["10.0.0.9:8000", "10.0.0.1:1", ""] {
        let mut exchange = Exchange::duplex(&service).with_subset(subset);
        exchange.send_headers(COMPLETIONS, false);
        exchange.send_body(&body, true);
        assert_eq!(refusal(&mut exchange), 503, "{subset:?}");
    }
}

/// The status of the answer to the client. The stream ends after it.
fn refusal(exchange: &mut Exchange<'_>) -> i32 {
    let Part::ImmediateResponse(refusal) = exchange.response() else { panic!("a refusal") };
    let error: serde_json::Value = serde_json::from_slice(&refusal.body).expect("JSON");
    let code = refusal.status.expect("a status").code;
    assert_eq!(error["error"]["code"], code);
    assert_eq!(exchange.next(), None);
    code
}

#[test]
fn without_a_ready_instance_the_client_is_answered() {
    let service = Service::start_with(options());
    let mut unknown = Exchange::duplex(&service);
    unknown.send_headers(COMPLETIONS, false);
    unknown.send_body(&completion(&[1]), true);
    assert_eq!(refusal(&mut unknown), 503);
    let down = json!({ "instance_id": "down", "model_name": "m", "block_size": BLOCK_TOKENS, "endpoint": "tcp://127.0.0.1:1" });
    assert_eq!(service.post("/register", &down).0, 201);
    let mut unready = Exchange::duplex(&service);
    unready.send_headers(COMPLETIONS, false);
    unready.send_body(&completion(&[1]), true);
    assert_eq!(refusal(&mut unready), 503);
    assert_eq!(picks(&service, "not_ready"), 2.0);
}

#[test]
fn an_instance_with_its_maximum_of_requests_is_not_picked() {
    let mut limited = options();
    limited.endpoint_picker.as_mut().expect("options").requests_max = Some(1);
    let service = service_with(&["10.0.0.1", "10.0.0.2"], limited);
    let body = completion(&[1, 2]);
    let (mut first, mut second) = (Exchange::duplex(&service), Exchange::duplex(&service));
    assert_ne!(first.complete(&body), second.complete(&body));
    let mut third = Exchange::duplex(&service);
    third.send_headers(COMPLETIONS, false);
    third.send_body(&body, true);
    assert_eq!(refusal(&mut third), 429);
    assert_eq!(picks(&service, "full"), 1.0);
    let reached = service.metrics().value("flash_indexer_limit_reached_total", &[("limit", "instance_requests")]);
    assert_eq!(reached, 1.0);
    drop(second);
    wait_for("the end of the request", PATIENCE, || (in_flight(&service) == 1).then_some(()));
    Exchange::duplex(&service).complete(&body);
}

#[test]
fn a_response_is_passed_on_as_it_comes_and_its_end_ends_the_load() {
    let service = service_with(&["10.0.0.1"], options());
    let prefill = || {
        let (_, picked) = service.post("/pick", &json!({ "model": "m", "token_ids": [] }));
        picked["load"]["prefill_blocks"].as_u64().expect("a number")
    };
    let mut exchange = Exchange::duplex(&service);
    exchange.complete(&completion(&[1, 2]));
    exchange.send(Request::ResponseHeaders(HttpHeaders::default()));
    assert!(matches!(exchange.response(), Part::ResponseHeaders(_)));
    assert_eq!(prefill(), 2);
    for (part, is_end) in [("data: 1\n\n", false), ("data: 2\n\n", false), ("", true)] {
        assert_eq!(in_flight(&service), 1);
        exchange.send(Request::ResponseBody(HttpBody { body: part.as_bytes().to_vec(), end_of_stream: is_end }));
        let Part::ResponseBody(body) = exchange.response() else { panic!("a part of the body") };
        assert_eq!(streamed(body.response), (part.as_bytes().to_vec(), is_end));
        assert_eq!(prefill(), 0, "the first token has arrived");
    }
    assert_eq!(in_flight(&service), 0);

    // The picker asks a gateway that buffers responses not to buffer them. The end of the stream ends the load.
    let mut buffered = Exchange::new(&service, BodySendMode::Buffered, BodySendMode::Buffered);
    buffered.send_headers(COMPLETIONS, false);
    buffered.response();
    buffered.send_body(&completion(&[1]), true);
    buffered.response();
    buffered.send(Request::ResponseHeaders(HttpHeaders::default()));
    let mode = buffered.next().expect("an answer").mode_override.expect("another mode");
    assert_eq!(mode.response_body_mode(), BodySendMode::None);
    assert_eq!(in_flight(&service), 1);
    buffered.send(Request::ResponseTrailers(HttpTrailers::default()));
    assert!(matches!(buffered.response(), Part::ResponseTrailers(_)));
    assert_eq!(in_flight(&service), 0);
}

#[test]
fn a_large_body_is_scored_and_sent_back_in_chunks() {
    let service = service_with(&["10.0.0.1"], options());
    let holder = Engine::registered(&service, json!("holder"), 0, &json!({}));
    let blocks: Vec<u64> = (1..=60_000).collect();
    holder.say(&service, 0, &[stored(None, &blocks[..1_000])]);
    let body = completion(&blocks);
    assert!(body.len() > 1 << 20, "{}", body.len());
    for part in [16 << 10, 700 << 10] {
        let mut exchange = Exchange::duplex(&service);
        exchange.send_headers(COMPLETIONS, false);
        // The channel has a bound, so the chunks are few enough for it.
        let parts: Vec<&[u8]> = body.chunks(body.len().div_ceil(40).max(part)).collect();
        for part in &parts {
            exchange.send_body(part, false);
        }
        exchange.send_body(b"", true);
        assert_eq!(exchange.destination(), address_of(&holder));
        assert_eq!(exchange.returned_body(), body);
    }
}

#[test]
fn a_stream_needs_a_permitted_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokens.toml");
    let [permitted, of_other_tenant] = [NewToken::generate(), NewToken::generate()].map(|token| token.expect("random"));
    let entries =
        [permitted.entry("a", &[Scope::Query], &[]), of_other_tenant.entry("b", &[Scope::Query], &["t".to_owned()])];
    std::fs::write(&file, entries.concat()).expect("written");
    let service = Service::start_with(ServerOptions { token_file: Some(file), ..options() });
    let address = service.server().endpoint_picker_address().expect("it was asked for");
    let open = |token: Option<&str>| {
        let (_requests, sent) = mpsc::channel(1);
        let mut request = tonic::Request::new(Sent(sent));
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().expect("a value");
            request.metadata_mut().insert("authorization", value);
        }
        service.block_on(async {
            let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
            let channel = channel.connect().await.expect("a connection");
            process(channel, request).await.map(|_| ()).map_err(|status| status.code())
        })
    };
    assert_eq!(open(None), Err(Code::Unauthenticated));
    assert_eq!(open(Some(of_other_tenant.secret())), Err(Code::PermissionDenied));
    assert_eq!(open(Some(permitted.secret())), Ok(()));
}
