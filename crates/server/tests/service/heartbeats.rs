//! Time-to-live in the service's heartbeats to engines, read from the wire.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use flash_indexer_server::{PodOptions, ServerOptions};
use serde_json::json;

use crate::support::{BLOCK_TOKENS, PATIENCE, Service};

/// ZMTP 3.1, mechanism NULL, not a server.
fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xFF, 0x7F, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// An engine at the level of ZMTP: it publishes nothing, and reads the frames that the service sends.
struct RawPublisher(TcpStream);

impl RawPublisher {
    /// Shakes hands over a connection, as a PUB socket.
    fn new(mut stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(&greeting()).expect("sent");
        stream.read_exact(&mut [0; 64]).expect("a greeting");
        let ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB";
        let size = u8::try_from(ready.len()).expect("a short command");
        stream.write_all(&[&[COMMAND, size][..], ready].concat()).expect("sent");
        Self(stream)
    }

    /// The next frame: its flags and its body.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).expect("a frame");
        let [flags, size] = head;
        assert_eq!(flags & LONG, 0, "subscriptions and heartbeats are short");
        let mut body = vec![0; size.into()];
        self.0.read_exact(&mut body).expect("a whole frame");
        (flags, body)
    }

    /// The time-to-live that the first heartbeat announces, in tenths of a second.
    fn announced_ttl(mut self) -> u16 {
        loop {
            let (flags, body) = self.frame();
            if let Some(ping) = body.strip_prefix(b"\x04PING").filter(|_| flags & COMMAND != 0) {
                return u16::from_be_bytes([ping[0], ping[1]]);
            }
        }
    }
}

const LONG: u8 = 0x02;
const COMMAND: u8 = 0x04;
/// 120 s, from `docs/decisions/restarts-and-reconnects.md`; the service itself closes a connection after 15 s.
const TTL: u16 = 1_200;

/// An engine closes a connection over which it received nothing for the time that the last heartbeat announced, and drops its queued
/// messages. A service that is suspended for 13 s sends no heartbeats: with a time-to-live of 15 s, counted from the last heartbeat,
/// engines that publish a burst meanwhile close the connection, and their ranks stay degraded.
#[test]
fn engines_keep_a_connection_to_a_service_that_stands_still() {
    let pods = PodOptions::new(vec!["tcp://127.0.0.1:*".to_owned()]);
    let service = Service::start_with(ServerOptions { pods: Some(pods), ..ServerOptions::default() });
    let dialled = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("tcp://{}", dialled.local_addr().expect("an address"));
    let registration = json!({ "instance_id": 1, "endpoint": endpoint, "model_name": "m", "block_size": BLOCK_TOKENS });
    let (status, answer) = service.post("/register", &registration);
    assert_eq!(status, 201, "{answer}");
    let dialled = RawPublisher::new(dialled.accept().expect("the service dials").0);
    let bound = service.indexer().pod_addresses().remove(0);
    let bound = bound.strip_prefix("tcp://").expect("a TCP address");
    let bound = RawPublisher::new(TcpStream::connect(bound).expect("the service is bound"));
    assert_eq!(dialled.announced_ttl(), TTL, "over a connection that the service dialled");
    assert_eq!(bound.announced_ttl(), TTL, "over a connection to the bound socket");
}
