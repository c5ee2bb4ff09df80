//! Clients that do not read their answers, and the budget of all answers.

use std::future::poll_fn;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::pin::pin;

use flash_indexer_telemetry::metrics::Limit;
use http_body::Body as _;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::Channel;
use tonic_prost::prost::Message;
use tower::ServiceExt;

use super::large_requests::{query, service_with};
use super::*;

const PAGE: usize = 4 << 10;

impl Service {
    fn answer_bytes(&self) -> usize {
        self.server().bodies.answers.bytes()
    }

    fn unsent(&self) -> u64 {
        self.server().indexer().metrics().limit_reached_count(Limit::AnswerBytesTotal)
    }

    /// A connection that has sent a request for the tokens of a body, and the first line of the answer.
    fn tokenize(&self, client: &str, body: &[u8]) -> (String, BufReader<TcpStream>) {
        let mut stream = self.connect_from(client);
        let head = format!(
            "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(body).expect("sent");
        let mut stream = BufReader::with_capacity(PAGE, stream);
        let mut status = String::new();
        stream.read_line(&mut status).expect("an answer");
        (status, stream)
    }
}

#[test]
fn answers_that_a_client_does_not_read_leave_room_for_others() {
    // Larger than the buffers of a connection in the kernel.
    const TOKENS: usize = 3 << 20;
    const BODY_BYTES_MAX: usize = 32 << 20;
    let service = service_with(ServerOptions {
        body_bytes_max: BODY_BYTES_MAX,
        body_bytes_total_max: Some(2 * BODY_BYTES_MAX),
        ..ServerOptions::default()
    });
    let body = json!({ "token_ids": vec![1_234_567; TOKENS], "model_name": "m" }).to_string().into_bytes();
    let small = json!({ "token_ids": [1], "model_name": "m" }).to_string().into_bytes();
    let answer_bytes = 8 * TOKENS;
    let unread: Vec<_> = (0..2)
        .map(|number| {
            let (status, stream) = service.tokenize("127.0.0.2", &body);
            assert_eq!(status, ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 503 Service Unavailable\r\n"][number]);
            stream
        })
        .collect();
    assert!(service.answer_bytes() >= answer_bytes, "the first answer waits to be read");
    assert_eq!(service.unsent(), 1);
    let [unread, mut refused] = <[_; 2]>::try_from(unread).expect("two answers");
    let mut answer = String::new();
    refused.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("\r\nretry-after: 1\r\n") && answer.contains("failed to send the answer"), "{answer}");
    assert_eq!(service.tokenize("127.0.0.2", &small).0, "HTTP/1.1 200 OK\r\n", "a small answer of the same client");

    let (status, mut other) = service.tokenize("127.0.0.3", &body);
    assert_eq!(status, "HTTP/1.1 200 OK\r\n", "another client");
    let mut answer = Vec::new();
    other.read_to_end(&mut answer).expect("an answer");
    assert!(answer.len() >= answer_bytes);
    drop(unread);
    wait_for("answers that are read or cut off to be released", PATIENCE, || {
        (service.answer_bytes() == 0).then_some(())
    });
    assert_eq!(service.tokenize("127.0.0.2", &body).0, "HTTP/1.1 200 OK\r\n");
    assert_eq!(service.unsent(), 1);
}

/// Sends a query on a connection that takes only one byte of each answer until it is read.
async fn ask(channel: Channel) -> Body {
    let message = query(1).encode_to_vec();
    let message = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let request = http::Request::post("/flash_indexer.v1.RouterService/Query")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(axum::body::Body::from(message)))
        .expect("a request");
    channel.oneshot(request).await.expect("an answer").into_body()
}

/// The status in an answer's trailers, and the number of bytes before them.
async fn read(mut answer: Body) -> (String, usize) {
    let mut bytes = 0;
    loop {
        let frame = poll_fn(|context| pin!(&mut answer).poll_frame(context)).await;
        match frame.expect("trailers").expect("an answer").into_data() {
            Ok(data) => bytes += data.len(),
            Err(frame) => {
                let trailers = frame.into_trailers().expect("trailers");
                return (trailers["grpc-status"].to_str().expect("ASCII").to_owned(), bytes);
            }
        }
    }
}

#[test]
fn answers_of_grpc_that_a_client_does_not_read_are_limited() {
    const TOTAL_MAX: usize = 256 << 10;
    let service = service_with(ServerOptions {
        body_bytes_max: TOTAL_MAX / 2,
        body_bytes_total_max: Some(TOTAL_MAX),
        ..ServerOptions::default()
    });
    for number in 0..64 {
        let instance = format!("{number}{}", "x".repeat(200));
        let register =
            json!({ "instance_id": instance, "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 1 });
        assert_eq!(service.post("/register", &register).0, 201);
    }
    let address = service.server().grpc_address().expect("gRPC is enabled");
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
    let endpoint = endpoint.initial_stream_window_size(1).initial_connection_window_size(1 << 20);
    let channel = service.runtime.block_on(endpoint.connect()).expect("a connection");
    let mut unread = Vec::new();
    let refused = wait_for("a refusal", PATIENCE, || {
        unread.push(service.runtime.block_on(ask(channel.clone())));
        // The last answer's bytes are counted after its head is received.
        wait_for("the answer to be counted or refused", PATIENCE, || {
            let is_counted = service.answer_bytes() >= unread.len() * 64 * 200;
            (is_counted || service.unsent() == 1).then_some(())
        });
        (service.unsent() == 1).then(|| unread.pop().expect("an answer"))
    });
    assert!(service.answer_bytes() > TOTAL_MAX / 2 && service.answer_bytes() < TOTAL_MAX, "its client's share");
    assert_eq!(service.runtime.block_on(read(refused)), ("8".to_owned(), 0), "RESOURCE_EXHAUSTED");
    let (status, bytes) = service.runtime.block_on(read(unread.pop().expect("an answer")));
    assert!(status == "0" && bytes > 64 * 200, "an answer that was counted is sent as a whole");
    drop(unread);
    wait_for("cancelled answers to be released", PATIENCE, || (service.answer_bytes() == 0).then_some(()));
    assert_eq!(service.runtime.block_on(async { read(ask(channel).await).await }).0, "0");
}
