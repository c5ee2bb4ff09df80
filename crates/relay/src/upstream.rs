//! The connection to the engine.

use std::time::{Duration, Instant};

use flash_indexer_curve::Curve;
use flash_indexer_wire::ReplayReply;

/// Messages are read at once, and the engine's rate bounds their number.
const RECEIVE_QUEUE_UNBOUNDED: i32 = 0;
/// A larger message closes the connection, as in the service.
const MESSAGE_BYTES_MAX: i64 = 16 << 20;
const HEARTBEAT_INTERVAL_MS: i32 = 5_000;
const HEARTBEAT_TIMEOUT_MS: i32 = 15_000;
/// Messages that are read before the connection's events.
const MESSAGES_PER_TURN_MAX: usize = 256;
/// Interval at which the relay checks whether it stops.
const STOP_CHECK_MS: i64 = 100;
/// Longest wait for the next message of a replay.
const REPLAY_SILENCE_MAX: Duration = Duration::from_secs(5);
/// Time after which a socket without a connection is replaced by a new one, which reads the keys again.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
const MONITOR: &str = "inproc://engine-connection";

/// A message of the engine: frames of the live socket.
pub(crate) type Frames = Vec<Vec<u8>>;

/// One subscription to the engine, which ends with its first connection.
pub(crate) struct Upstream {
    live: zmq::Socket,
    monitor: zmq::Socket,
    opened: Instant,
    is_connected: bool,
    is_lost: bool,
}

impl Upstream {
    /// Opens a socket, which connects in the background.
    pub(crate) fn open(endpoint: &str, curve: Option<&Curve>) -> zmq::Result<Self> {
        let context = zmq::Context::new();
        let live = socket(&context, zmq::SUB, endpoint, curve)?;
        live.set_heartbeat_ivl(HEARTBEAT_INTERVAL_MS)?;
        live.set_heartbeat_timeout(HEARTBEAT_TIMEOUT_MS)?;
        live.set_tcp_keepalive(1)?;
        live.set_subscribe(b"")?;
        live.monitor(MONITOR, i32::from(zmq::SocketEvent::ALL.to_raw()))?;
        let monitor = context.socket(zmq::PAIR)?;
        monitor.set_linger(0)?;
        monitor.connect(MONITOR)?;
        live.connect(endpoint)?;
        Ok(Self { live, monitor, opened: Instant::now(), is_connected: false, is_lost: false })
    }

    /// Waits for the connection, at most for [`STOP_CHECK_MS`]. Returns whether it is established.
    pub(crate) fn await_connection(&mut self) -> zmq::Result<bool> {
        if !self.is_connected && self.monitor.poll(zmq::POLLIN, STOP_CHECK_MS)? > 0 {
            self.read_events();
        }
        Ok(self.is_connected)
    }

    /// Whether the connection was lost, or none was established in time.
    pub(crate) fn is_over(&mut self) -> bool {
        self.read_events();
        self.is_lost || (!self.is_connected && self.opened.elapsed() >= CONNECT_DEADLINE)
    }

    /// The next messages, at most after [`STOP_CHECK_MS`]; none once the connection is lost: a later message may be another
    /// connection's.
    pub(crate) fn next_messages(&mut self) -> zmq::Result<Option<Vec<Frames>>> {
        let mut items = [self.live.as_poll_item(zmq::POLLIN), self.monitor.as_poll_item(zmq::POLLIN)];
        zmq::poll(&mut items, STOP_CHECK_MS)?;
        let mut messages = Vec::new();
        while messages.len() < MESSAGES_PER_TURN_MAX {
            match self.live.recv_multipart(zmq::DONTWAIT) {
                Ok(frames) => messages.push(frames),
                Err(zmq::Error::EAGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        // The event of a lost connection precedes the messages of the next one.
        self.read_events();
        Ok((!self.is_lost).then_some(messages))
    }

    fn read_events(&mut self) {
        use zmq::SocketEvent as Event;
        while let Ok(frames) = self.monitor.recv_multipart(zmq::DONTWAIT) {
            let Some(code) = frames.first().and_then(|frame| frame.first_chunk::<2>()) else { continue };
            match Event::from_raw(u16::from_ne_bytes(*code)) {
                Event::HANDSHAKE_SUCCEEDED => self.is_connected = true,
                Event::DISCONNECTED => self.is_lost |= self.is_connected,
                event @ (Event::HANDSHAKE_FAILED_NO_DETAIL
                | Event::HANDSHAKE_FAILED_PROTOCOL
                | Event::HANDSHAKE_FAILED_AUTH) => {
                    tracing::warn!(?event, "the handshake with the engine failed; compare the CURVE keys");
                }
                _ => {}
            }
        }
    }
}

impl Drop for Upstream {
    /// Stops the monitor before it is closed: libzmq's threads block until the events of a monitored socket are read.
    fn drop(&mut self) {
        let _ = self.live.monitor("inproc://unmonitored", 0);
    }
}

/// Outcome of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplayEnd {
    /// The engine has sent every message that it still had.
    Complete,
    /// The engine did not answer, or stopped before the end.
    Silent,
}

/// Requests the messages starting at a sequence number, and passes each to `receive`.
pub(crate) fn replay(
    endpoint: &str,
    curve: Option<&Curve>,
    from: u64,
    is_stopping: &dyn Fn() -> bool,
    mut receive: impl FnMut(u64, &[u8]),
) -> zmq::Result<ReplayEnd> {
    let context = zmq::Context::new();
    let dealer = socket(&context, zmq::DEALER, endpoint, curve)?;
    dealer.connect(endpoint)?;
    // Engines ignore a request without the empty frame.
    dealer.send_multipart([&b""[..], &from.to_be_bytes()], 0)?;
    let mut received_at = Instant::now();
    while received_at.elapsed() < REPLAY_SILENCE_MAX && !is_stopping() {
        if dealer.poll(zmq::POLLIN, STOP_CHECK_MS)? == 0 {
            continue;
        }
        received_at = Instant::now();
        let frames = dealer.recv_multipart(0)?;
        match ReplayReply::from_frames(&frames) {
            Ok(ReplayReply::Message { sequence, payload, .. }) => receive(sequence, payload),
            Ok(ReplayReply::End) => return Ok(ReplayEnd::Complete),
            Err(error) => {
                tracing::warn!(%error, "the replay endpoint answers with invalid messages; check that it is the engine's");
                return Ok(ReplayEnd::Silent);
            }
        }
    }
    Ok(ReplayEnd::Silent)
}

fn socket(
    context: &zmq::Context,
    kind: zmq::SocketType,
    endpoint: &str,
    curve: Option<&Curve>,
) -> zmq::Result<zmq::Socket> {
    let socket = context.socket(kind)?;
    socket.set_linger(0)?;
    socket.set_rcvhwm(RECEIVE_QUEUE_UNBOUNDED)?;
    socket.set_maxmsgsize(MESSAGE_BYTES_MAX)?;
    socket.set_ipv6(endpoint.contains('['))?;
    curve.map_or(Ok(false), |curve| curve.secure_client(&socket, endpoint))?;
    Ok(socket)
}
