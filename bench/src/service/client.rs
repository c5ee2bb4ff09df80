//! A minimal HTTP/1.1 client, whose own cost is small compared with the service's.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;

/// A connection for consecutive requests.
pub(super) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

/// An encoded request, head and body, that is sent many times.
pub(super) struct Prepared(Vec<u8>);

impl Prepared {
    pub(super) fn get(path: &str) -> Self {
        Self(format!("GET {path} HTTP/1.1\r\nHost: flash-indexer\r\n\r\n").into_bytes())
    }

    pub(super) fn post(path: &str, body: &impl Serialize) -> Result<Self> {
        let body = serde_json::to_vec(body)?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: flash-indexer\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        Ok(Self([head.into_bytes(), body].concat()))
    }
}

const GET_WORKERS: &[u8] = b"GET /workers HTTP/1.1\r\nHost: flash-indexer\r\n\r\n";
const READ_BYTES: usize = 1 << 16;

/// Reads the response to a GET over a separate connection, to its end. Returns its length in bytes.
pub(super) fn read_whole(address: &str, path: &str) -> Result<usize> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("failed to connect to {address}"))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: flash-indexer\r\nConnection: close\r\n\r\n")?;
    let mut buffer = vec![0; READ_BYTES];
    let mut length = stream.read(&mut buffer)?;
    ensure!(buffer.starts_with(b"HTTP/1.1 2"), "{path}: {}", String::from_utf8_lossy(&buffer[..length]));
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(length),
            count => length += count,
        }
    }
}

impl Connection {
    pub(super) fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("failed to connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Sends a request and returns the response's body; a status other than success is an error.
    pub(super) fn send(&mut self, request: &Prepared) -> Result<&[u8]> {
        self.exchange(&request.0)
    }

    pub(super) fn workers(&mut self) -> Result<Value> {
        Ok(serde_json::from_slice(self.exchange(GET_WORKERS)?)?)
    }

    fn exchange(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.stream.write_all(request)?;
        self.received.clear();
        let mut buffer = [0; READ_BYTES];
        let mut whole: Option<(usize, usize)> = None;
        loop {
            if let Some((body, end)) = whole.filter(|&(_, end)| self.received.len() >= end) {
                ensure!(self.received.len() == end, "the response is longer than its content-length");
                let body = &self.received[body..];
                if !self.received.starts_with(b"HTTP/1.1 2") {
                    bail!("the service answered: {}", String::from_utf8_lossy(body));
                }
                return Ok(body);
            }
            let count = self.stream.read(&mut buffer)?;
            ensure!(count > 0, "the service closed the connection");
            self.received.extend_from_slice(&buffer[..count]);
            if whole.is_none() {
                whole = extent(&self.received)?;
            }
        }
    }
}

/// Start and end of a response's body, once its head is complete.
fn extent(received: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(head) = received.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let text = str::from_utf8(&received[..head])?.to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let length = length.context("the response has no content-length")?;
    Ok(Some((head + 4, head + 4 + length)))
}
