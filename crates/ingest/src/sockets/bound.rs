//! The bound socket, which engines connect to, and its thread.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_curve::{Admission, Curve};
use flash_indexer_telemetry::supervision::{SupervisedThread, Supervisor, ThreadKind, Watch};
use rustc_hash::FxHashMap;
use tracing::{debug, info, warn};

use super::pauses::PauseDetector;
use super::{BYTES_PER_DELIVERY, open_live_socket};
use crate::bound_pods::{ConnectionId, PodMessage, Topics};
use crate::decoders::Decoders;
use crate::engine_socket::MESSAGES_PER_TURN_MAX;

/// Limit of connections that wait to be accepted: a whole fleet reconnects at once.
const BACKLOG: i32 = 4_096;
/// Interval at which the thread checks whether the service stops, in milliseconds.
const STOP_CHECK_MS: i64 = 100;
const MONITOR: &str = "inproc://bound-monitor";
/// ZeroMQ's private property of a message: the file descriptor of its connection.
const CONNECTION_PROPERTY: &str = "__fd";

/// Options of the bound socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundOptions {
    /// Addresses to bind, such as `tcp://0.0.0.0:5557`; port `*` takes a free one.
    pub endpoints: Vec<String>,
    /// Prefix of the topics that are received.
    pub topic_prefix: String,
}

/// A socket that cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be bound.
    #[error(
        "failed to bind {endpoint} for engines: {source}; give an address of this machine, such as tcp://0.0.0.0:5557"
    )]
    Endpoint {
        /// The address.
        endpoint: String,
        /// Cause of the failure.
        source: zmq::Error,
    },
    /// ZeroMQ refuses a socket.
    #[error("failed to open the bound socket: {0}; raise the limit of open files (ulimit -n)")]
    Socket(#[from] zmq::Error),
    /// The system refuses a thread.
    #[error("failed to start the thread of the bound socket: {0}; raise the limit of threads")]
    Thread(#[from] std::io::Error),
}

/// Handle of the thread that owns the bound socket. The thread ends when the decoders stop.
pub(super) struct BoundThread {
    /// Addresses, with their actual ports.
    pub(super) endpoints: Vec<String>,
    pub(super) thread: SupervisedThread,
}

impl BoundThread {
    pub(super) fn start(
        options: &BoundOptions,
        curve: Option<&Arc<Curve>>,
        decoders: Arc<Decoders>,
        supervisor: &Supervisor,
    ) -> Result<Self, BindError> {
        // A separate context has its own I/O thread: a flood here does not delay dialled engines.
        let context = zmq::Context::new();
        let (socket, monitor) = open_live_socket(&context, options.topic_prefix.as_bytes(), MONITOR)?;
        socket.set_backlog(BACKLOG)?;
        let admission = match curve {
            Some(curve) if curve.secure_server(&socket)? => curve.admission(&context)?,
            _ => None,
        };
        let mut endpoints = Vec::new();
        for endpoint in &options.endpoints {
            let bound = bind(&socket, endpoint);
            endpoints.push(bound.map_err(|source| BindError::Endpoint { endpoint: endpoint.clone(), source })?);
        }
        let is_secure = admission.is_some();
        info!(endpoint = endpoints.join(", ").as_str(), curve = is_secure, "listening for engines");
        let topics = Topics::new(decoders.count());
        let connections = FxHashMap::default();
        // Connection of messages whose connection ZeroMQ does not name.
        decoders.connection_opened(ConnectionId(0));
        let bound = BoundLoop {
            socket,
            monitor,
            admission,
            decoders,
            topics,
            connections,
            connected: 0,
            pauses: PauseDetector::new(Instant::now()),
        };
        let run = move |watch: &Arc<Watch>| bound.run(watch);
        Ok(Self { endpoints, thread: supervisor.spawn(ThreadKind::BoundSocket, None, run)? })
    }
}

fn bind(socket: &zmq::Socket, endpoint: &str) -> zmq::Result<String> {
    // With IPv6 on, the wildcard * would bind addresses of both kinds.
    socket.set_ipv6(endpoint.contains('['))?;
    socket.bind(endpoint)?;
    Ok(socket.get_last_endpoint()?.unwrap_or_else(|_| endpoint.to_owned()))
}

/// An open connection of an engine.
struct EngineConnection {
    id: ConnectionId,
    /// Whether the monitor has reported it. A message can be read before that.
    is_monitored: bool,
}

/// State of the thread.
struct BoundLoop {
    socket: zmq::Socket,
    monitor: zmq::Socket,
    /// Admits engines by their keys; none without CURVE.
    admission: Option<Admission>,
    decoders: Arc<Decoders>,
    topics: Topics,
    /// Open connections, by file descriptor.
    connections: FxHashMap<i32, EngineConnection>,
    /// Connections accepted so far.
    connected: u64,
    pauses: PauseDetector,
}

impl BoundLoop {
    fn run(mut self, watch: &Watch) {
        let mut turn = self.decoders.processor_turn();
        while !self.decoders.are_stopping() {
            watch.begin(None);
            if watch.guarded(|| self.serve()).is_none() {
                self.disconnect_all();
            }
            watch.guarded(|| self.mark_tails_unverified(Instant::now()));
            watch.end();
            turn.yield_if_over();
        }
    }

    /// If the thread was paused, records that the last messages of each registered pod may be missing. The pod's streams request them.
    fn mark_tails_unverified(&mut self, now: Instant) {
        if let Some(shown_from) = self.pauses.turn(now) {
            self.topics.listeners().for_each(|listener| self.decoders.mark_tail_unverified(&listener, shown_from));
        }
    }

    /// Reports every connection as lost after a panic: messages that were received and not delivered are missing.
    fn disconnect_all(&mut self) {
        warn!(
            connections = self.connections.len(),
            "treating connections of engines as lost: the bound socket's thread panicked"
        );
        self.topics = Topics::new(self.decoders.count());
        for (_, lost) in self.connections.drain() {
            self.decoders.connection_lost(lost.id);
        }
    }

    /// Waits for messages and connection events, and delivers them.
    fn serve(&mut self) {
        let mut items = vec![self.socket.as_poll_item(zmq::POLLIN), self.monitor.as_poll_item(zmq::POLLIN)];
        items.extend(self.admission.as_ref().map(Admission::poll_item));
        if let Err(error) = zmq::poll(&mut items, STOP_CHECK_MS) {
            // Interrupted by a signal: poll again.
            debug!(%error, "failed to poll the bound socket; retrying");
            return;
        }
        let has_events = items[1].is_readable();
        if let Some(admission) = &self.admission {
            admission.answer();
        }
        if has_events {
            self.read_monitor();
        }
        self.receive(MESSAGES_PER_TURN_MAX);
    }

    /// Handles the monitor's connection events.
    fn read_monitor(&mut self) {
        use zmq::SocketEvent as Event;
        while let Ok(frames) = self.monitor.recv_multipart(zmq::DONTWAIT) {
            let Some((event, value)) = frames.first().and_then(|frame| frame.split_first_chunk::<2>()) else {
                continue;
            };
            let Some(&value) = value.first_chunk::<4>() else { continue };
            let descriptor = i32::from_ne_bytes(value);
            match Event::from_raw(u16::from_ne_bytes(*event)) {
                Event::ACCEPTED => match self.connections.get_mut(&descriptor) {
                    Some(connection) if !connection.is_monitored => connection.is_monitored = true,
                    _ => {
                        let connection = EngineConnection { id: self.new_connection(), is_monitored: true };
                        self.connections.insert(descriptor, connection);
                    }
                },
                Event::DISCONNECTED => {
                    // Messages received before the connection was lost belong to it.
                    self.receive(usize::MAX);
                    if let Some(lost) = self.connections.remove(&descriptor) {
                        self.decoders.connection_lost(lost.id);
                    }
                }
                Event::HANDSHAKE_FAILED_PROTOCOL | Event::HANDSHAKE_FAILED_AUTH | Event::HANDSHAKE_FAILED_NO_DETAIL
                    if self.admission.is_some() =>
                {
                    debug!("the CURVE handshake with an engine failed; compare its key with --curve-clients");
                    self.decoders.curve_handshake_failed();
                }
                _ => {}
            }
        }
    }

    /// Receives at most `messages_max` queued messages, and delivers them by pod.
    fn receive(&mut self, messages_max: usize) {
        let (mut received, mut bytes) = (0, 0);
        while received < messages_max && !self.decoders.are_stopping() {
            let Ok(first) = self.socket.recv_msg(zmq::DONTWAIT) else { break };
            let Some(message) = self.read_message(first) else { break };
            // A test injects a panic by this topic.
            #[cfg(any(test, feature = "fault-injection"))]
            assert!(!message.frames[0].ends_with(b"@fault"), "a test asked for a failure");
            received += 1;
            bytes += message.frames.iter().map(Vec::len).sum::<usize>();
            if let Err(error) = self.topics.sort(message) {
                debug!(%error, "message of the bound socket rejected");
                self.decoders.reject(error.reason());
            }
            if bytes >= BYTES_PER_DELIVERY || received % MESSAGES_PER_TURN_MAX == 0 {
                self.deliver_sorted();
                bytes = 0;
            }
        }
        self.deliver_sorted();
    }

    /// Reads the rest of the message that begins with this frame.
    fn read_message(&mut self, mut first: zmq::Message) -> Option<PodMessage> {
        let connection = self.connection_of(&mut first);
        let mut has_more = first.get_more();
        let mut frames = vec![first.to_vec()];
        while has_more {
            // The frames of a message arrive together.
            let frame = self.socket.recv_msg(zmq::DONTWAIT).ok()?;
            has_more = frame.get_more();
            frames.push(frame.to_vec());
        }
        Some(PodMessage { connection, frames })
    }

    /// Connection of a message.
    fn connection_of(&mut self, first: &mut zmq::Message) -> ConnectionId {
        let descriptor = first.gets(CONNECTION_PROPERTY).and_then(|descriptor| descriptor.parse().ok());
        let Some(descriptor) = descriptor else { return ConnectionId::UNKNOWN };
        if let Some(connection) = self.connections.get(&descriptor) {
            return connection.id;
        }
        let id = self.new_connection();
        self.connections.insert(descriptor, EngineConnection { id, is_monitored: false });
        id
    }

    fn new_connection(&mut self) -> ConnectionId {
        self.connected += 1;
        let connection = ConnectionId(self.connected);
        self.decoders.connection_opened(connection);
        connection
    }

    fn deliver_sorted(&mut self) {
        let Self { topics, decoders, .. } = self;
        topics.drain(|pod, messages| decoders.deliver_to_pod(pod, messages));
    }
}

impl Drop for BoundLoop {
    /// Stops the monitor: ZeroMQ's own threads block until the events of a monitored socket are read.
    fn drop(&mut self) {
        if let Err(error) = self.socket.monitor("inproc://bound-unmonitored", 0) {
            debug!(%error, "failed to stop the monitor of the bound socket");
        }
    }
}
