//! Sockets to an engine, like the service's. The only module of this crate that uses ZeroMQ.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Messages are received at once; the time of listening bounds their number.
const RECEIVE_QUEUE_UNBOUNDED: i32 = 0;
/// A larger message closes the connection, as in the service.
const MESSAGE_BYTES_MAX: i64 = 16 << 20;

/// Why no connection to an endpoint can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConnectError {
    /// The host is up and no process listens on the port.
    Refused,
    /// The host did not respond within this time.
    TimedOut(Duration),
    /// Another reason, as text.
    Other(String),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => write!(f, "connection refused"),
            Self::TimedOut(deadline) => write!(f, "no answer within {deadline:?}"),
            Self::Other(why) => write!(f, "{why}"),
        }
    }
}

impl ConnectError {
    fn of(error: &io::Error, deadline: Duration) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => Self::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Self::TimedOut(deadline),
            _ => Self::Other(error.to_string()),
        }
    }
}

/// A plain connection to an endpoint.
trait Connection: Read + Write {}
impl<C: Read + Write> Connection for C {}

/// Checks that an endpoint accepts connections.
pub(super) fn check_reachable(endpoint: &str, deadline: Duration) -> Result<(), ConnectError> {
    connect(endpoint, deadline).map(drop)
}

/// Connects without ZeroMQ. Reads from the connection wait for `deadline` at most.
fn connect(endpoint: &str, deadline: Duration) -> Result<Box<dyn Connection>, ConnectError> {
    let connect_error = |error: io::Error| ConnectError::of(&error, deadline);
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        let connection = UnixStream::connect(path).map_err(connect_error)?;
        connection.set_read_timeout(Some(deadline)).map_err(connect_error)?;
        return Ok(Box::new(connection));
    }
    let other = |why: &str| ConnectError::Other(why.to_owned());
    let address = endpoint.strip_prefix("tcp://").ok_or_else(|| other("neither tcp:// nor ipc://"))?;
    let addresses = address.to_socket_addrs().map_err(|error| other(&error.to_string()))?;
    let mut why = other("the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, deadline) {
            Ok(connection) => {
                connection.set_read_timeout(Some(deadline)).map_err(connect_error)?;
                return Ok(Box::new(connection));
            }
            Err(error) => why = connect_error(error),
        }
    }
    Err(why)
}

/// The start of ZeroMQ's greeting and the end of a line, to which servers of other protocols respond as well.
const GREETING: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\r\n\r\n";

/// Whether an endpoint accepts a connection and then neither sends nor closes it. The kernel accepts connections for a
/// stopped process.
pub(super) fn is_unresponsive(endpoint: &str, deadline: Duration) -> bool {
    let Ok(mut connection) = connect(endpoint, deadline) else { return false };
    let read = connection.write_all(GREETING).and_then(|()| connection.read(&mut [0]));
    read.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// A subscription to everything that an engine publishes.
pub(super) struct Subscription {
    live: zmq::Socket,
    monitor: zmq::Socket,
}

impl Subscription {
    /// Opens a socket, which connects in the background.
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

    /// Waits until the peer has completed ZeroMQ's handshake as a publisher; false at the deadline.
    pub(super) fn is_answered_within(&self, deadline: Duration) -> Result<bool, zmq::Error> {
        Ok(self.monitor.poll(zmq::POLLIN, milliseconds(deadline))? > 0)
    }

    /// The next message; none at the deadline.
    pub(super) fn next_within(&self, deadline: Duration) -> Result<Option<Vec<Vec<u8>>>, zmq::Error> {
        next_within(&self.live, deadline)
    }
}

/// Requests a replay of everything and passes each message to `receive`, until it breaks, no message comes for
/// `silence_max`, or `deadline` is over.
pub(super) fn replay(
    endpoint: &str,
    silence_max: Duration,
    deadline: Duration,
    mut receive: impl FnMut(Vec<Vec<u8>>) -> ControlFlow<()>,
) -> Result<(), zmq::Error> {
    let context = zmq::Context::new();
    let dealer = socket(&context, zmq::DEALER, endpoint)?;
    dealer.connect(endpoint)?;
    // Engines ignore a request without the empty frame.
    dealer.send_multipart([&b""[..], &0u64.to_be_bytes()], 0)?;
    let start = Instant::now();
    while let Some(frames) = next_within(&dealer, silence_max.min(deadline.saturating_sub(start.elapsed())))? {
        if receive(frames).is_break() {
            break;
        }
    }
    Ok(())
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
