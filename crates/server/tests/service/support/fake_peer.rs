//! A peer with responses and failures that a test configures.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;

use super::PATIENCE;

/// Outcome of a request for the dump.
#[derive(Clone)]
pub(crate) enum FakeDump {
    /// The bytes, and a proper end.
    Whole(Vec<u8>),
    /// The dump of the service at this URL, taken once the test allows it.
    Relayed { url: String, allowed: Arc<Mutex<Receiver<()>>> },
    /// The bytes, and a broken connection.
    Dies(Vec<u8>),
    /// The bytes, and then nothing for as long as the test runs.
    Stalls(Vec<u8>),
    /// An error.
    Refuses,
}

/// Answers `/workers` and `/dump` until it is dropped.
pub(crate) struct FakePeer {
    pub(crate) url: String,
    pub(crate) dumps_asked: Arc<AtomicUsize>,
    /// Connections that stand still: closed with the peer.
    stalled: Arc<Mutex<Vec<TcpStream>>>,
    serving: Option<JoinHandle<()>>,
    address: std::net::SocketAddr,
}

impl FakePeer {
    pub(crate) fn start(workers: Value, dump: FakeDump) -> Self {
        Self::with_digest(workers, dump, &Value::Null)
    }

    /// A peer that returns this digest for every rank.
    pub(crate) fn with_digest(workers: Value, dump: FakeDump, digest: &Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let dumps_asked = Arc::new(AtomicUsize::new(0));
        let stalled = Arc::new(Mutex::new(Vec::new()));
        let serving = std::thread::spawn({
            let (dumps_asked, stalled) = (Arc::clone(&dumps_asked), Arc::clone(&stalled));
            let digest = digest.to_string();
            move || {
                for stream in listener.incoming() {
                    let mut stream = stream.expect("a client");
                    let request = request(&mut stream);
                    if request.is_empty() {
                        return;
                    }
                    if request.starts_with("GET /dump") {
                        dumps_asked.fetch_add(1, Ordering::Relaxed);
                        answer_dump(stream, &dump, &stalled);
                    } else if request.starts_with("GET /digest") {
                        answer(&mut stream, "200 OK", digest.as_bytes());
                    } else {
                        answer(&mut stream, "200 OK", workers.to_string().as_bytes());
                    }
                }
            }
        });
        Self { url: format!("http://{address}"), dumps_asked, stalled, serving: Some(serving), address }
    }
}

fn request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => break,
            Ok(read) => bytes.extend_from_slice(&part[..read]),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends an answer. Errors are ignored: the client may have disconnected.
fn answer(stream: &mut TcpStream, status: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
}

fn answer_dump(mut stream: TcpStream, dump: &FakeDump, stalled: &Mutex<Vec<TcpStream>>) {
    let part = |bytes: &[u8]| {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        // A chunk of no bytes would end the answer.
        let chunk = if bytes.is_empty() { String::new() } else { format!("{:x}\r\n", bytes.len()) };
        [head.as_bytes(), chunk.as_bytes(), bytes, if bytes.is_empty() { b"" } else { b"\r\n" }].concat()
    };
    match dump {
        FakeDump::Whole(bytes) => answer(&mut stream, "200 OK", bytes),
        FakeDump::Relayed { url, allowed } => {
            allowed.lock().expect("no thread panics").recv_timeout(PATIENCE).expect("the test allows the dump");
            let request = ureq::get(format!("{url}/dump")).header("accept", "application/x-ndjson");
            let dump = request.call().expect("an answer").body_mut().read_to_vec().expect("a dump");
            answer(&mut stream, "200 OK", &dump);
        }
        FakeDump::Dies(bytes) => drop(stream.write_all(&part(bytes))),
        FakeDump::Stalls(bytes) => {
            let _ = stream.write_all(&part(bytes));
            stalled.lock().expect("no thread panics").push(stream);
        }
        FakeDump::Refuses => answer(&mut stream, "503 Service Unavailable", b"{\"error\":\"not now\"}"),
    }
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        self.stalled.lock().expect("no thread panics").clear();
        // An empty request ends the thread.
        drop(TcpStream::connect(self.address));
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}
