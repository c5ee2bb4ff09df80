//! A stand-in for TensorRT-LLM's server: it answers `POST /kv_cache_events` with queued answers, and then with an empty list.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use flash_indexer_test_support::wait_for;
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use super::PATIENCE;

/// An answer to one request.
pub(crate) enum Says {
    /// These events, with status 200.
    Events(Value),
    /// This status line and headers, with this body.
    Raw(&'static str, Vec<u8>),
    /// Nothing, until the server ends.
    Nothing,
}

#[derive(Default)]
struct State {
    says: Mutex<VecDeque<Says>>,
    pulls: AtomicUsize,
    open: AtomicUsize,
    opened: AtomicUsize,
    requests: Mutex<Vec<String>>,
    streams: Mutex<Vec<TcpStream>>,
    is_ended: AtomicBool,
    ended: (Mutex<()>, Condvar),
}

/// The server. It closes its connections when it is dropped.
pub(crate) struct FakeTrtllm {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl FakeTrtllm {
    pub(crate) fn start() -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// A server at the address of one that has stopped.
    pub(crate) fn at(address: SocketAddr) -> Self {
        let listener = wait_for("the port", PATIENCE, || TcpListener::bind(address).ok());
        let (address, state) = (listener.local_addr().expect("an address"), Arc::<State>::default());
        let of_thread = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                if of_thread.is_ended.load(Ordering::SeqCst) {
                    return;
                }
                of_thread.streams.lock().push(stream.try_clone().expect("a handle"));
                let state = Arc::clone(&of_thread);
                std::thread::spawn(move || state.serve(stream));
            }
        });
        Self { address, state, thread: Some(thread) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn say(&self, says: Says) {
        self.state.says.lock().push_back(says);
    }

    /// Publishes events from this number on.
    pub(crate) fn publish(&self, first: u64, data: &[Value]) {
        self.say(Says::Events(events(first, data)));
    }

    /// Pulls so far.
    pub(crate) fn pulls(&self) -> usize {
        self.state.pulls.load(Ordering::SeqCst)
    }

    /// Connections so far.
    pub(crate) fn opened(&self) -> usize {
        self.state.opened.load(Ordering::SeqCst)
    }

    /// Connections that are open.
    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Ordering::SeqCst)
    }

    /// The request lines that differ.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.requests.lock().clone()
    }
}

impl Drop for FakeTrtllm {
    fn drop(&mut self) {
        self.state.is_ended.store(true, Ordering::SeqCst);
        drop(self.state.ended.0.lock());
        self.state.ended.1.notify_all();
        for stream in self.state.streams.lock().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    fn serve(&self, stream: TcpStream) {
        self.opened.fetch_add(1, Ordering::SeqCst);
        self.open.fetch_add(1, Ordering::SeqCst);
        // It fails when the client or the test closes the connection.
        let _ = self.answer_all(stream);
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    fn answer_all(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let (mut request, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
                if line == "\r\n" {
                    break;
                }
                if request.is_empty() {
                    request = line.trim().to_owned();
                }
            }
            reader.read_exact(&mut vec![0; length])?;
            {
                let mut requests = self.requests.lock();
                if !requests.contains(&request) {
                    requests.push(request);
                }
            }
            self.pulls.fetch_add(1, Ordering::SeqCst);
            let (head, body) = match self.says.lock().pop_front() {
                None => ("200 OK", b"[]".to_vec()),
                Some(Says::Events(events)) => ("200 OK", events.to_string().into_bytes()),
                Some(Says::Raw(head, body)) => (head, body),
                Some(Says::Nothing) => {
                    let mut ended = self.ended.0.lock();
                    while !self.is_ended.load(Ordering::SeqCst) {
                        self.ended.1.wait(&mut ended);
                    }
                    return Ok(());
                }
            };
            write!(stream, "HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n", body.len())?;
            stream.write_all(&body)?;
        }
    }
}

/// Events with numbers from `first` on.
pub(crate) fn events(first: u64, data: &[Value]) -> Value {
    (first..).zip(data).map(|(id, data)| json!({ "event_id": id, "window_size": 4096, "data": data })).collect()
}

pub(crate) fn created() -> Value {
    json!({ "type": "created", "num_blocks_per_cache_level": [64, 64] })
}

/// Blocks after `parent`, which have the tokens of [`tokens`](super::tokens).
pub(crate) fn stored(parent: Option<u64>, hashes: &[u64]) -> Value {
    let token = |id: u32| json!({ "type": "unique_token", "token_id": id, "token_extra_id": 0 });
    let block = |&hash: &u64| {
        let tokens: Vec<_> = super::tokens(&[hash]).into_iter().map(token).collect();
        json!({ "type": "stored_block", "block_hash": hash, "tokens": tokens, "cache_level": 0, "priority": 35 })
    };
    json!({ "type": "stored", "parent_hash": parent, "blocks": hashes.iter().map(block).collect::<Vec<_>>() })
}

pub(crate) fn removed(hashes: &[u64]) -> Value {
    json!({ "type": "removed", "block_hashes": hashes })
}

/// A block that moves between levels.
pub(crate) fn moved(hash: u64, from: u32, to: u32) -> Value {
    let level = json!({ "type": "event_diff", "old_value": from, "new_value": to });
    json!({ "type": "updated", "block_hash": hash, "cache_level": level, "priority": null })
}
