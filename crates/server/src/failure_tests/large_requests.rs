//! Requests with large bodies, while all threads for them are occupied.

use std::io::{Read, Write};

use flash_indexer_admission::{LARGE_BYTES, LargeRequests};
use flash_indexer_proto::flash_indexer::v1::QueryRequest;
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_test_support::watch_until;
use tonic::codec::CompressionEncoding;
use tonic::transport::Channel;

use super::*;

/// Path, headers and body of a request.
type BodyRequest<'r> = (&'r str, Vec<(&'r str, &'r str)>, &'r [u8]);

const JSON: &str = "application/json";
const BINARY: &str = "application/octet-stream";

impl Service {
    fn large_requests(&self) -> &LargeRequests {
        &self.server().bodies.large_requests
    }

    fn refused(&self) -> u64 {
        self.server().indexer().metrics().limit_reached_count(Limit::LargeRequests)
    }

    /// The status of the answer to a body, and its header `retry-after`.
    pub(super) fn send(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Option<String>) {
        let request =
            headers.iter().fold(self.agent.post(self.url(path)), |it, (name, value)| it.header(*name, *value));
        let response = request.send(body).expect("an answer");
        let retry_after = response.headers().get("retry-after");
        (response.status().as_u16(), retry_after.map(|value| value.to_str().expect("ASCII").to_owned()))
    }

    pub(super) fn channel(&self) -> Channel {
        let address = self.server().grpc_address().expect("gRPC is enabled");
        let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
        self.runtime.block_on(endpoint.connect()).expect("a connection")
    }
}

fn service() -> Service {
    service_with(ServerOptions::default())
}

/// A service with gRPC and a model.
pub(super) fn service_with(options: ServerOptions) -> Service {
    let service = Service::start_with(ServerOptions { grpc_port: Some(0), ..options });
    let register = json!({ "instance_id": 1, "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 1 });
    assert_eq!(service.post("/register", &register).0, 201);
    service
}

/// A JSON body with more tokens than a small body has room for.
fn large_json() -> Vec<u8> {
    json!({ "token_ids": vec![1; LARGE_BYTES / 2], "model_name": "m" }).to_string().into_bytes()
}

pub(super) fn query(tokens: usize) -> QueryRequest {
    QueryRequest { model_name: "m".to_owned(), token_bytes: vec![0; tokens * 4], ..QueryRequest::default() }
}

/// Occupies all threads for large requests, sends as many large bodies as one client may have waiting, and runs a check meanwhile. The
/// bodies are answered afterwards.
fn while_occupied(service: &Service, check: impl FnOnce()) {
    let gate = service.large_requests().occupy();
    let body = large_json();
    std::thread::scope(|scope| {
        let send = || service.send("/query", &[("content-type", JSON)], &body).0;
        let share = LargeRequests::share_alone();
        let waiting: Vec<_> = (0..share).map(|_| scope.spawn(send)).collect();
        watch_until("all large bodies to wait", PATIENCE, || {
            assert!(!waiting.iter().any(|it| it.is_finished()), "a large body was answered by another thread");
            (service.large_requests().waiting() == share).then_some(())
        });
        check();
        drop(gate);
        assert!(waiting.into_iter().all(|it| it.join().expect("an answer") == 200), "they waited for a thread");
    });
    assert_eq!(service.large_requests().waiting(), 0);
}

#[test]
fn small_requests_are_answered_while_large_bodies_occupy_their_threads() {
    let service = service();
    while_occupied(&service, || {
        for path in ["/health", "/ready", "/metrics", "/workers"] {
            assert_eq!(service.get(path).0, 200, "{path}");
        }
        assert_eq!(service.post("/query", &json!({ "token_ids": [1, 2], "model_name": "m" })).0, 200);
        assert_eq!(service.send("/query?model_name=m", &[("content-type", BINARY)], &[0; LARGE_BYTES]).0, 200);
        let small = zstd::encode_all(&br#"{"token_ids": [1], "model_name": "m"}"#[..], 1).expect("memory");
        assert_eq!(service.send("/query", &[("content-type", JSON), ("content-encoding", "zstd")], &small).0, 200);
        let mut client = RouterServiceClient::new(service.channel());
        service.runtime.block_on(client.query(query(2))).expect("an answer");
        assert_eq!(service.refused(), 0);
    });
}

#[test]
fn a_large_body_beyond_those_that_may_wait_is_refused_on_every_endpoint() {
    let service = service();
    let spaces = |json: &str| [json, &" ".repeat(LARGE_BYTES)].concat().into_bytes();
    let prompt = spaces(r#"{"token_ids": [1], "model_name": "m", "pod": 1}"#);
    let chat = spaces(r#"{"messages": [], "model_name": "m"}"#);
    let hashes = spaces(r#"{"block_hashes": [1], "model_name": "m"}"#);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&prompt).expect("memory");
    let (gzip, zstd) = (gzip.finish().expect("memory"), zstd::encode_all(&prompt[..], 1).expect("memory"));
    assert!(gzip.len() < LARGE_BYTES && zstd.len() < LARGE_BYTES);
    let json = [("content-type", JSON)];
    let requests: Vec<BodyRequest<'_>> = vec![
        ("/query", json.to_vec(), &prompt),
        ("/query", vec![("content-type", JSON), ("content-encoding", "gzip")], &gzip),
        ("/query", vec![("content-type", JSON), ("content-encoding", "zstd")], &zstd),
        ("/query?model_name=m", vec![("content-type", BINARY)], &[0; LARGE_BYTES + 4]),
        ("/query_by_hash", json.to_vec(), &hashes),
        ("/query_by_hash?model_name=m", vec![("content-type", BINARY)], &[0; LARGE_BYTES + 8]),
        ("/score_completions", json.to_vec(), &prompt),
        ("/score_chat_completions", json.to_vec(), &chat),
        ("/predict", json.to_vec(), &prompt),
        ("/tokenize", json.to_vec(), &prompt),
        ("/render", json.to_vec(), &prompt),
        ("/explain", json.to_vec(), &prompt),
        ("/register", json.to_vec(), &prompt),
        ("/unregister", json.to_vec(), &prompt),
        ("/register_peer", json.to_vec(), &prompt),
    ];
    while_occupied(&service, || {
        for (number, (path, headers, body)) in requests.iter().enumerate() {
            let refused = (503, Some("1".to_owned()));
            assert_eq!(service.send(path, headers, body), refused, "{path} {headers:?}");
            assert_eq!(service.refused(), number as u64 + 1, "it is counted");
        }
        let mut client = RouterServiceClient::new(service.channel());
        let refused = service.runtime.block_on(client.query(query(LARGE_BYTES))).expect_err("no thread is free");
        assert_eq!((refused.code(), refused.metadata().contains_key("retry-after")), (Code::ResourceExhausted, true));
        let mut client = client.send_compressed(CompressionEncoding::Zstd);
        service.runtime.block_on(client.query(query(2))).expect("a small content needs no thread for large requests");
        let refused = service.runtime.block_on(client.query(query(LARGE_BYTES))).expect_err("its content is large");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let (sender, sent) = tokio::sync::mpsc::channel(1);
        let mut client = RouterServiceClient::new(service.channel());
        let mut answers = service.runtime.block_on(client.query_stream(Sent(sent))).expect("a stream").into_inner();
        sender.blocking_send(query(LARGE_BYTES)).expect("the stream is open");
        let refused = service.runtime.block_on(answers.message()).expect_err("too many wait");
        assert_eq!((refused.code(), refused.metadata().contains_key("retry-after")), (Code::ResourceExhausted, true));
        assert_eq!(service.refused(), requests.len() as u64 + 3);
    });
    for (path, headers, body) in &requests {
        assert_ne!(service.send(path, headers, body).0, 503, "{path}");
    }
}

#[test]
fn a_call_that_waits_for_a_thread_keeps_its_deadline() {
    let service = service();
    let gate = service.large_requests().occupy();
    let mut client = RouterServiceClient::new(service.channel());
    wait_for("a late call", PATIENCE, || {
        let mut request = tonic::Request::new(query(LARGE_BYTES));
        request.set_timeout(Duration::from_millis(300));
        // The client's own deadline may pass first.
        let late = service.runtime.block_on(client.query(request)).expect_err("no thread is free");
        assert!(matches!(late.code(), Code::Cancelled | Code::DeadlineExceeded), "{late}");
        let late = "grpc_requests_total{method=\"Query\",code=\"deadline_exceeded\"}";
        service.get("/metrics").1.contains(late).then_some(())
    });
    drop(gate);
    wait_for("its place to be free", PATIENCE, || (service.large_requests().waiting() == 0).then_some(()));
    service.runtime.block_on(client.query(query(LARGE_BYTES))).expect("an answer");
}

#[test]
fn a_client_that_fills_its_share_leaves_room_for_the_large_bodies_of_others() {
    let service = service();
    let body = large_json();
    let head = format!(
        "POST /query HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    let mut other = None;
    while_occupied(&service, || {
        let before = service.large_requests().waiting();
        let mut stream = service.connect_from("127.0.0.2");
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(&body).expect("sent");
        wait_for("the body to wait", PATIENCE, || (service.large_requests().waiting() > before).then_some(()));
        other = Some(stream);
    });
    let mut answer = String::new();
    other.expect("a connection").read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(service.refused(), 0);
}

#[test]
fn a_stream_whose_large_message_waits_for_a_thread_goes_on_afterwards() {
    let service = service();
    let gate = service.large_requests().occupy();
    let mut client = RouterServiceClient::new(service.channel());
    let (sender, requests) = tokio::sync::mpsc::channel(4);
    let mut answers = service.runtime.block_on(client.query_stream(Sent(requests))).expect("a stream").into_inner();
    let mut next = || service.runtime.block_on(answers.message()).expect("a stream").expect("an answer").request_id;
    let send = |request_id, tokens| {
        sender.blocking_send(QueryRequest { request_id, ..query(tokens) }).expect("the stream is open");
    };
    send(1, 2);
    assert_eq!(next(), 1, "a small message needs no thread for large requests");
    send(2, LARGE_BYTES);
    send(3, 2);
    wait_for("the large message to wait", PATIENCE, || (service.large_requests().waiting() == 1).then_some(()));
    drop(gate);
    assert_eq!([next(), next()], [2, 3]);
    send(4, LARGE_BYTES);
    assert_eq!(next(), 4);
}

#[test]
fn a_client_that_disconnects_takes_its_waiting_body_with_it() {
    let service = service();
    let gate = service.large_requests().occupy();
    let body = large_json();
    let address = service.server().address();
    let mut client = std::net::TcpStream::connect(address).expect("a connection");
    let head = format!(
        "POST /query HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).expect("sent");
    client.write_all(&body).expect("sent");
    wait_for("the body to wait", PATIENCE, || (service.large_requests().waiting() == 1).then_some(()));
    drop(client);
    // A thread drops the cancelled request.
    drop(gate);
    wait_for("the request to be cancelled", PATIENCE, || (service.large_requests().waiting() == 0).then_some(()));
}

/// Requests of a stream.
pub(super) struct Sent(pub(super) tokio::sync::mpsc::Receiver<QueryRequest>);

impl futures_core::Stream for Sent {
    type Item = QueryRequest;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<QueryRequest>> {
        self.0.poll_recv(context)
    }
}
