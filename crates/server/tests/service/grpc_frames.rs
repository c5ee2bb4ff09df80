//! Streams of gRPC requests as frames of HTTP/2, which need not end where a message ends.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::process::Command;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use flash_indexer_proto::flash_indexer::v1::QueryRequest;
use flash_indexer_server::{Server, ServerOptions};
use http_body::{Body as _, Frame};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::Channel;
use tonic_prost::prost::Message;
use tower::ServiceExt;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

struct Service {
    runtime: Runtime,
    server: Server,
    channel: Channel,
}

impl Service {
    fn start(options: ServerOptions) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let options = ServerOptions { port: 0, grpc_port: Some(0), ..options };
        let server = runtime.block_on(Server::start(options)).expect("a server");
        let address = server.grpc_address().expect("gRPC is enabled");
        let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
        let channel = runtime.block_on(endpoint.connect()).expect("a connection");
        Self { runtime, server, channel }
    }

    fn open(&self) -> QueryStream<'_> {
        let (sender, frames) = mpsc::unbounded_channel();
        let request = http::Request::post("/flash_indexer.v1.RouterService/QueryStream")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::new(Frames(frames)))
            .expect("a request");
        let response = self.runtime.block_on(self.channel.clone().oneshot(request)).expect("an answer");
        QueryStream { runtime: &self.runtime, sender, response: response.into_body(), received: Vec::new() }
    }

    fn stop(self) {
        drop(self.channel);
        self.runtime.block_on(self.server.stop());
    }
}

/// Body of a request whose frames a test sends.
struct Frames(mpsc::UnboundedReceiver<Bytes>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|frame| frame.map(|data| Ok(Frame::data(data))))
    }
}

struct QueryStream<'s> {
    runtime: &'s Runtime,
    sender: mpsc::UnboundedSender<Bytes>,
    response: Body,
    received: Vec<u8>,
}

impl QueryStream<'_> {
    fn send(&self, frame: Bytes) {
        self.sender.send(frame).expect("the stream is open");
    }

    /// Waits for the next answer, a success or an error.
    fn wait_for_answer(&mut self) {
        loop {
            if let Some((header, rest)) = self.received.split_first_chunk::<5>() {
                let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
                if rest.len() >= length {
                    self.received.drain(..5 + length);
                    return;
                }
            }
            let response = &mut self.response;
            let next = std::future::poll_fn(|context| pin!(&mut *response).poll_frame(context));
            let next = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, next).await });
            let frame = next.expect("an answer in time").expect("the stream is open").expect("a frame");
            match frame.into_data() {
                Ok(data) => self.received.extend_from_slice(&data),
                Err(end) => panic!("the stream ended: {:?}", end.into_trailers()),
            }
        }
    }
}

/// A message with its header and a query of this number of bytes of tokens.
fn message(token_bytes: usize) -> Bytes {
    let query =
        QueryRequest { model_name: "m".to_owned(), token_bytes: vec![0; token_bytes], ..QueryRequest::default() };
    let query = query.encode_to_vec();
    let header = [&[0][..], &(query.len() as u32).to_be_bytes()].concat();
    [header, query].concat().into()
}

#[test]
fn a_stream_whose_frames_end_amid_messages_may_send_more_than_the_budget() {
    const TOTAL_MAX: usize = 4 * MIB;
    let service = Service::start(ServerOptions {
        body_bytes_max: MIB,
        body_bytes_total_max: Some(TOTAL_MAX),
        ..ServerOptions::default()
    });
    let message = message(12_000);
    for cut in [1, 5, 6_000] {
        let mut stream = service.open();
        stream.send(message.slice(..cut));
        for _ in 0..TOTAL_MAX / message.len() {
            stream.send([&message[cut..], &message[..cut]].concat().into());
            stream.wait_for_answer();
        }
    }
    service.stop();
}

#[test]
fn idle_streams_do_not_keep_the_buffers_of_large_messages() {
    const STREAMS: usize = 48;
    const ALONE: &str = "FLASH_TEST_ALONE";
    // The memory of a process is that of all its tests, so this one runs in a separate process.
    if std::env::var_os(ALONE).is_none() {
        let name = std::thread::current().name().expect("a test's thread has its name").to_owned();
        let mut test = Command::new(std::env::current_exe().expect("a path"));
        let output = test.args(["--exact", &name]).env(ALONE, "1").output().expect("the test starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let service = Service::start(ServerOptions::default());
    let message = message(7 * MIB);
    // The allocator keeps some memory of the first messages.
    let send = || {
        let mut stream = service.open();
        stream.send(message.clone());
        stream.wait_for_answer();
        stream
    };
    let _first = send();
    let before = resident_bytes();
    let streams: Vec<_> = (0..STREAMS).map(|_| send()).collect();
    let grown_by = resident_bytes().saturating_sub(before);
    assert!(grown_by < STREAMS * message.len() / 2, "{} MiB", grown_by / MIB);
    drop((streams, _first));
    service.stop();
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.split_whitespace().next().and_then(|kibibytes| kibibytes.parse::<usize>().ok()).expect("a number") << 10
}
