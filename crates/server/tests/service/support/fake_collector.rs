//! A stand-in for a collector of spans: it decodes the spans received over OTLP, and answers as the test configures.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use flash_indexer_test_support::wait_for;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use parking_lot::Mutex;
use prost::Message;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use super::PATIENCE;

/// How the collector answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Answers {
    /// It accepts every span.
    All,
    /// It accepts the request, and rejects this number of its spans.
    AllBut(i64),
    /// This status, without a body.
    Status(u16),
    /// Nothing, until the connection is closed.
    Nothing,
}

#[derive(Debug)]
struct State {
    spans: Mutex<Vec<Span>>,
    resource: Mutex<BTreeMap<String, Value>>,
    requests: AtomicUsize,
    answers: Mutex<Answers>,
    is_ended: AtomicBool,
}

/// The collector. It accepts no connection after it is dropped.
pub(crate) struct FakeCollector {
    address: SocketAddr,
    scheme: &'static str,
    state: Arc<State>,
}

impl FakeCollector {
    pub(crate) fn start() -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), Answers::All, None)
    }

    /// A collector that answers in this way.
    pub(crate) fn that_answers(answers: Answers) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), answers, None)
    }

    /// A collector at this address, inside TLS if it has a configuration.
    pub(crate) fn at(address: SocketAddr, answers: Answers, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = wait_for("the port", PATIENCE, || TcpListener::bind(address).ok());
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            spans: Mutex::default(),
            resource: Mutex::default(),
            requests: AtomicUsize::new(0),
            answers: Mutex::new(answers),
            is_ended: AtomicBool::new(false),
        });
        let (of_thread, scheme) = (Arc::clone(&state), if tls.is_some() { "https" } else { "http" });
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if of_thread.is_ended.load(Ordering::SeqCst) {
                    return;
                }
                let (state, tls) = (Arc::clone(&of_thread), tls.clone());
                std::thread::spawn(move || match tls {
                    None => state.serve(stream),
                    Some(config) => {
                        let connection = ServerConnection::new(config).expect("a connection");
                        state.serve(StreamOwned::new(connection, stream));
                    }
                });
            }
        });
        Self { address, scheme, state }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://localhost:{}", self.scheme, self.address.port())
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> usize {
        self.state.requests.load(Ordering::SeqCst)
    }

    /// The spans so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.state.spans.lock().clone()
    }

    /// Attributes of the service that sent spans.
    pub(crate) fn resource(&self) -> BTreeMap<String, Value> {
        self.state.resource.lock().clone()
    }

    /// The spans of a trace with one request, once that of the request has arrived: it ends last.
    pub(crate) fn wait_for_trace(&self, trace_id: &str) -> Trace {
        wait_for("the spans of a request", PATIENCE, || {
            let spans = self.spans().into_iter().filter(|span| hex(&span.trace_id) == trace_id).collect::<Vec<_>>();
            let root = spans.iter().find(|span| span.kind() == SpanKind::Server)?.clone();
            Some(Trace { stages: spans.into_iter().filter(|span| span.span_id != root.span_id).collect(), root })
        })
    }
}

impl Drop for FakeCollector {
    fn drop(&mut self) {
        self.state.is_ended.store(true, Ordering::SeqCst);
        // Wakes the thread, which may have ended.
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    /// Serves the requests of a connection until it is closed.
    fn serve<S: Read + Write>(&self, stream: S) {
        let mut stream = BufReader::new(stream);
        loop {
            let (mut line, mut length) = (String::new(), 0);
            let Ok(1..) = stream.read_line(&mut line) else { return };
            let request = line.trim_end().to_owned();
            loop {
                line.clear();
                let Ok(1..) = stream.read_line(&mut line) else { return };
                let header = line.trim_end().to_ascii_lowercase();
                if let Some(bytes) = header.strip_prefix("content-length:") {
                    length = bytes.trim().parse().expect("a length");
                }
                if header.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).expect("a body");
            assert_eq!(request, "POST /v1/traces HTTP/1.1");
            self.requests.fetch_add(1, Ordering::SeqCst);
            let batch = ExportTraceServiceRequest::decode(&*body).expect("spans");
            let (status, answer) = match *self.answers.lock() {
                Answers::All => (200, ExportTraceServiceResponse::default()),
                Answers::AllBut(rejected_spans) => {
                    let partial = ExportTracePartialSuccess { rejected_spans, error_message: "too old".to_owned() };
                    (200, ExportTraceServiceResponse { partial_success: Some(partial) })
                }
                Answers::Status(status) => (status, ExportTraceServiceResponse::default()),
                Answers::Nothing => {
                    // The client closes the connection at its deadline.
                    let _ = stream.read_line(&mut line);
                    return;
                }
            };
            if status == 200 {
                self.receive(batch);
            }
            let answer = answer.encode_to_vec();
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n", answer.len());
            let stream = stream.get_mut();
            if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&answer)).is_err() {
                return;
            }
        }
    }

    fn receive(&self, batch: ExportTraceServiceRequest) {
        for resource in batch.resource_spans {
            let of_service = resource.resource.expect("the service describes itself");
            *self.resource.lock() = attributes(&of_service.attributes);
            for scope in resource.scope_spans {
                assert_eq!(scope.scope.expect("a scope").name, "flash-indexer");
                self.spans.lock().extend(scope.spans);
            }
        }
    }
}

/// The spans of one request.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) root: Span,
    pub(crate) stages: Vec<Span>,
}

impl Trace {
    pub(crate) fn attributes(&self) -> BTreeMap<String, Value> {
        attributes(&self.root.attributes)
    }

    /// Names of the stages, in the order in which they began.
    pub(crate) fn stage_names(&self) -> Vec<&str> {
        let mut stages: Vec<&Span> = self.stages.iter().collect();
        stages.sort_by_key(|stage| stage.start_time_unix_nano);
        stages.into_iter().map(|stage| stage.name.as_str()).collect()
    }

    /// The first stage of a name.
    pub(crate) fn stage(&self, name: &str) -> &Span {
        self.stages.iter().find(|stage| stage.name == name).unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }
}

pub(crate) fn attributes(list: &[KeyValue]) -> BTreeMap<String, Value> {
    let value = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => json!(text),
        Some(any_value::Value::IntValue(number)) => json!(number),
        other => panic!("an attribute of another type: {other:?}"),
    };
    list.iter().map(|attribute| (attribute.key.clone(), value(attribute))).collect()
}

/// Bytes of an id as headers have them.
pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
