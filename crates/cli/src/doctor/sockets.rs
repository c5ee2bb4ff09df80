//! Sockets to an engine, as the service has them. The only module of this crate that knows ZeroMQ.

use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Sockets take what comes at once; what is heard is bounded by how long is listened.
const RECEIVE_QUEUE_UNBOUNDED: i32 = 0;
/// A larger message closes the connection, as in the service.
const MESSAGE_BYTES_MAX: i64 = 16 << 20;

/// Whether anybody accepts connections at an endpoint; the error says why not.
pub(super) fn reach(endpoint: &str, deadline: Duration) -> Result<(), String> {
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        return UnixStream::connect(path).map(drop).map_err(|error| error.to_string());
    }
    let address = endpoint.strip_prefix("tcp://").ok_or("neither tcp:// nor ipc://")?;
    let addresses = address.to_socket_addrs().map_err(|error| error.to_string())?;
    let mut why = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, deadline) {
            Ok(_) => return Ok(()),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

/// A subscription to everything that an engine publishes.
pub(super) struct Subscription {
    live: zmq::Socket,
    monitor: zmq::Socket,
}

impl Subscription {
    /// Connecting goes on in the background.
    pub(super) fn open(endpoint: &str) -> Result<Self, zmq::Error> {
        const MONITOR: &str = "inproc://connection";
        let context = zmq::Context::new();
        let live = socket(&context, zmq::SUB, endpoint)?;
        live.set_subscribe(b"")?;
        live.monitor(MONITOR, i32::from(zmq::SocketEvent::HANDSHAKE_SUCCEEDED.to_raw()))?;
        let monitor = context.socket(zmq::PAIR)?;
        monitor.set_linger(0)?;
        monitor.connect(MONITOR)?;
        live.connect(endpoint)?;
        Ok(Self { live, monitor })
    }

    /// Waits until the other side has shown that it is a publisher; false if it has not in time.
    pub(super) fn is_answered_within(&self, deadline: Duration) -> Result<bool, zmq::Error> {
        Ok(self.monitor.poll(zmq::POLLIN, milliseconds(deadline))? > 0)
    }

    /// The next message, if one comes in time.
    pub(super) fn next_within(&self, deadline: Duration) -> Result<Option<Vec<Vec<u8>>>, zmq::Error> {
        next_within(&self.live, deadline)
    }
}

/// Asks a replay endpoint for everything and hands on what comes, until `take` says that it was the last or
/// nothing has come for `silence_max` or `deadline` is over.
pub(super) fn replay(
    endpoint: &str,
    silence_max: Duration,
    deadline: Duration,
    mut take: impl FnMut(Vec<Vec<u8>>) -> ReplayGoesOn,
) -> Result<(), zmq::Error> {
    let context = zmq::Context::new();
    let dealer = socket(&context, zmq::DEALER, endpoint)?;
    dealer.connect(endpoint)?;
    // Engines do not answer without the empty frame.
    dealer.send_multipart([&b""[..], &0u64.to_be_bytes()], 0)?;
    let start = Instant::now();
    while let Some(frames) = next_within(&dealer, silence_max.min(deadline.saturating_sub(start.elapsed())))? {
        if take(frames) == ReplayGoesOn::No {
            break;
        }
    }
    Ok(())
}

/// Whether more of an answer is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplayGoesOn {
    Yes,
    No,
}

fn socket(context: &zmq::Context, kind: zmq::SocketType, endpoint: &str) -> Result<zmq::Socket, zmq::Error> {
    let socket = context.socket(kind)?;
    socket.set_linger(0)?;
    socket.set_rcvhwm(RECEIVE_QUEUE_UNBOUNDED)?;
    socket.set_maxmsgsize(MESSAGE_BYTES_MAX)?;
    socket.set_ipv6(endpoint.contains('['))?;
    Ok(socket)
}

fn next_within(socket: &zmq::Socket, deadline: Duration) -> Result<Option<Vec<Vec<u8>>>, zmq::Error> {
    match socket.poll(zmq::POLLIN, milliseconds(deadline))? {
        0 => Ok(None),
        _ => socket.recv_multipart(0).map(Some),
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
