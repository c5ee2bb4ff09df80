//! Clients that send large bodies slowly, and the budget of all bodies.

use std::io::{Read, Write};
use std::net::TcpStream;

use flash_indexer_proto::flash_indexer::v1::QueryRequest;
use flash_indexer_proto::flash_indexer::v1::router_service_client::RouterServiceClient;
use flash_indexer_telemetry::metrics::Limit;
use tonic::Code;

use super::large_requests::{Sent, query, service_with};
use super::*;

const BODY_BYTES_MAX: usize = 1 << 20;
const TOTAL_MAX: usize = 4 << 20;

/// Part of a body that a slow client sends.
const SENT_BYTES: usize = 512 << 10;

fn service() -> Service {
    service_with(ServerOptions {
        body_bytes_max: BODY_BYTES_MAX,
        body_bytes_total_max: Some(TOTAL_MAX),
        ..ServerOptions::default()
    })
}

impl Service {
    fn body_bytes(&self) -> usize {
        self.server().bodies.budget.bytes()
    }

    fn over_budget(&self) -> u64 {
        self.server().indexer().metrics().limit_reached_count(Limit::BodyBytesTotal)
    }

    /// A connection from a loopback address.
    pub(super) fn connect_from(&self, client: &str) -> TcpStream {
        let server = self.server().address();
        let stream = self.runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket.bind(format!("{client}:0").parse().expect("an address")).expect("a loopback address");
            socket.connect(server).await.expect("a connection").into_std().expect("a socket")
        });
        stream.set_nonblocking(false).expect("a socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }

    /// A connection that has sent the head of a request and a part of its body.
    fn send_slowly(&self, client: &str) -> TcpStream {
        let mut stream = self.connect_from(client);
        let head = format!(
            "POST /query HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {BODY_BYTES_MAX}\r\n\
             connection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(&[b' '; SENT_BYTES]).expect("sent");
        stream
    }

    /// Connections of as many slow bodies as the clients of one address may have.
    fn fill(&self, client: &str) -> Vec<TcpStream> {
        let streams: Vec<_> = (0..TOTAL_MAX / 2 / SENT_BYTES).map(|_| self.send_slowly(client)).collect();
        wait_for("the bodies to arrive", PATIENCE, || (self.body_bytes() == TOTAL_MAX / 2).then_some(()));
        streams
    }
}

/// A JSON body of a length.
fn json_body(bytes: usize) -> Vec<u8> {
    let mut body = br#"{"token_ids": [1], "model_name": "m"}"#.to_vec();
    body.resize(bytes, b' ');
    body
}

#[test]
fn slow_bodies_of_one_client_leave_room_for_others() {
    let service = service();
    let mut slow = service.fill("127.0.0.2");
    assert_eq!(service.over_budget(), 0);
    let mut refused = service.send_slowly("127.0.0.2");
    wait_for("a refusal", PATIENCE, || (service.over_budget() == 1).then_some(()));
    refused.write_all(&[b' '; BODY_BYTES_MAX - SENT_BYTES]).expect("sent");
    let mut answer = String::new();
    refused.read_to_string(&mut answer).expect("an answer");
    let answer = answer.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 503 ") && answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    assert!(answer.contains("--body-bytes-total-max"), "{answer}");

    let json = [("content-type", "application/json")];
    assert_eq!(service.send("/query", &json, &json_body(BODY_BYTES_MAX)).0, 200, "another client");
    let small = json_body(100);
    let mut same = service.connect_from("127.0.0.2");
    let head = "POST /query HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\nconnection: close\r\n\r\n";
    same.write_all(head.as_bytes()).expect("sent");
    same.write_all(&small).expect("sent");
    let mut answer = String::new();
    same.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "small bodies of the same client: {answer}");
    wait_for("the answered bodies to be released", PATIENCE, || (service.body_bytes() == TOTAL_MAX / 2).then_some(()));

    let mut finished = slow.remove(0);
    drop(slow);
    wait_for("closed connections to free their bytes", PATIENCE, || (service.body_bytes() == SENT_BYTES).then_some(()));
    finished.write_all(&json_body(BODY_BYTES_MAX - SENT_BYTES)).expect("sent");
    let mut answer = String::new();
    finished.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "what was received stays: {answer}");
    wait_for("the answered body to be released", PATIENCE, || (service.body_bytes() == 0).then_some(()));
    assert_eq!(service.over_budget(), 1);
}

#[test]
fn messages_of_grpc_count_in_the_same_budget() {
    let service = service();
    let slow = service.fill("127.0.0.1");
    let mut client = RouterServiceClient::new(service.channel());
    let large = || query(BODY_BYTES_MAX / 4 - 100);
    let mut ask = |request: QueryRequest| service.runtime.block_on(client.query(request));
    let refused = ask(large()).expect_err("the other half is for other clients");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.metadata().contains_key("retry-after"));
    assert_eq!(service.over_budget(), 1);
    ask(query(2)).expect("a small message fits");
    drop(slow);
    wait_for("closed connections to free their bytes", PATIENCE, || (service.body_bytes() == 0).then_some(()));
    ask(large()).expect("there is room");
    wait_for("answered messages to free their bytes", PATIENCE, || (service.body_bytes() == 0).then_some(()));
}

#[test]
fn a_compressed_body_counts_as_decompressed_until_it_is_answered() {
    let service = service();
    let _slow = service.fill("127.0.0.1");
    let compressed = zstd::encode_all(&json_body(BODY_BYTES_MAX)[..], 1).expect("memory");
    let headers = [("content-type", "application/json"), ("content-encoding", "zstd")];
    assert_eq!(service.send("/query", &headers, &compressed), (503, Some("1".to_owned())));
    assert_eq!(service.over_budget(), 1);
}

#[test]
fn a_head_of_a_grpc_call_above_its_limit_is_refused() {
    let service = service();
    let mut client = RouterServiceClient::new(service.channel());
    let mut ask = |head_bytes: usize| {
        let mut request = tonic::Request::new(query(1));
        request.metadata_mut().insert("x-large", "x".repeat(head_bytes).parse().expect("ASCII"));
        service.runtime.block_on(client.query(request)).map_err(|refused| refused.message().to_owned())
    };
    let refused = ask(17 << 10).expect_err("16 KiB are allowed");
    assert!(refused.contains("431"), "{refused}");
    ask(15 << 10).expect("an answer on the same connection");
}

#[test]
fn heads_of_grpc_calls_count_until_the_calls_end() {
    const HEAD_BYTES: usize = 12 << 10;
    const HEADS_TOTAL_MAX: usize = 128 << 10;
    let service = service_with(ServerOptions {
        body_bytes_max: HEADS_TOTAL_MAX / 2,
        body_bytes_total_max: Some(HEADS_TOTAL_MAX),
        ..ServerOptions::default()
    });
    let client = RouterServiceClient::new(service.channel());
    let open = || {
        let (sender, requests) = tokio::sync::mpsc::channel(1);
        let mut request = tonic::Request::new(Sent(requests));
        request.metadata_mut().insert("x-large", "x".repeat(HEAD_BYTES).parse().expect("ASCII"));
        let mut client = client.clone();
        service.runtime.block_on(client.query_stream(request)).map(|answers| (sender, answers))
    };
    let calls: Vec<_> = (0..8).map(|_| open().expect("three quarters of the budget")).collect();
    assert!((8 * HEAD_BYTES..9 * HEAD_BYTES).contains(&service.body_bytes()));
    let refused = open().expect_err("the rest is for other clients");
    assert_eq!((refused.code(), refused.metadata().contains_key("retry-after")), (Code::ResourceExhausted, true));
    assert_eq!(service.over_budget(), 1);
    drop(calls);
    wait_for("ended calls to free their heads", PATIENCE, || (service.body_bytes() == 0).then_some(()));
    open().expect("there is room");
}
