//! The socket that engines connect to, and its thread.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracing::{debug, info, warn};

use super::{BYTES_PER_DELIVERY, MESSAGE_BYTES_MAX, MESSAGES_PER_TURN_MAX, RECEIVE_QUEUE_UNBOUNDED};
use crate::bound_pods::{ConnectionId, PodMessage, Topics};
use crate::decoders::Decoders;
use flash_indexer_telemetry::supervision::{SupervisedThread, Supervisor, ThreadKind, Watch};

const HEARTBEAT_INTERVAL_MS: i32 = 5_000;
const HEARTBEAT_TIMEOUT_MS: i32 = 15_000;
/// How long an engine keeps a connection over which no heartbeat is received. Longer than the timeout: a service that
/// stood still goes on with the messages that waited, where an engine that had closed the connection drops them.
const HEARTBEAT_TTL_MS: i32 = 120_000;
/// Connections that may wait to be accepted: a whole fleet comes back at once.
const BACKLOG: i32 = 4_096;
/// How often the thread looks whether it should end, in milliseconds.
const STOP_CHECK_MS: i64 = 100;
const MONITOR: &str = "inproc://bound-monitor";
/// ZeroMQ's private name of the connection that a message came over: its file descriptor.
const CONNECTION_PROPERTY: &str = "__fd";

/// Where engines connect to, and what of their messages is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundOptions {
    /// Addresses to bind, such as `tcp://0.0.0.0:5557`; port `*` takes a free one.
    pub endpoints: Vec<String>,
    /// Messages whose topic begins otherwise are not received.
    pub topic_prefix: String,
}

/// The socket cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be bound.
    #[error(
        "cannot listen for engines on {endpoint}: {source}; give an address of this machine, such as tcp://0.0.0.0:5557"
    )]
    Endpoint {
        /// The address.
        endpoint: String,
        /// Cause of the failure.
        source: zmq::Error,
    },
    /// ZeroMQ has no socket.
    #[error("failed to listen for engines: {0}")]
    Socket(#[from] zmq::Error),
    /// The system has no thread.
    #[error("failed to start a thread for the bound socket: {0}")]
    Thread(#[from] std::io::Error),
}

/// The thread that owns the bound socket. It ends when the decoders stop.
pub(super) struct BoundThread {
    /// Addresses, with their real ports.
    pub(super) endpoints: Vec<String>,
    pub(super) thread: SupervisedThread,
}

impl BoundThread {
    pub(super) fn start(
        options: &BoundOptions,
        decoders: Arc<Decoders>,
        supervisor: &Supervisor,
    ) -> Result<Self, BindError> {
        // A context of its own: a flood here is not read by the thread that reads dialled engines.
        let context = zmq::Context::new();
        let socket = context.socket(zmq::SUB)?;
        socket.set_linger(0)?;
        socket.set_rcvhwm(RECEIVE_QUEUE_UNBOUNDED)?;
        socket.set_maxmsgsize(MESSAGE_BYTES_MAX)?;
        socket.set_heartbeat_ivl(HEARTBEAT_INTERVAL_MS)?;
        socket.set_heartbeat_timeout(HEARTBEAT_TIMEOUT_MS)?;
        socket.set_heartbeat_ttl(HEARTBEAT_TTL_MS)?;
        socket.set_tcp_keepalive(1)?;
        socket.set_backlog(BACKLOG)?;
        socket.set_subscribe(options.topic_prefix.as_bytes())?;
        socket.monitor(MONITOR, i32::from(zmq::SocketEvent::ALL.to_raw()))?;
        let monitor = context.socket(zmq::PAIR)?;
        monitor.set_linger(0)?;
        monitor.connect(MONITOR)?;
        let mut endpoints = Vec::new();
        for endpoint in &options.endpoints {
            let bound = bind(&socket, endpoint);
            endpoints.push(bound.map_err(|source| BindError::Endpoint { endpoint: endpoint.clone(), source })?);
        }
        info!(endpoint = endpoints.join(", ").as_str(), "listening for engines");
        let topics = Topics::new(decoders.count());
        let bound = BoundLoop { socket, monitor, decoders, topics, connections: FxHashMap::default(), connected: 0 };
        let run = move |watch: &Arc<Watch>| bound.run(watch);
        Ok(Self { endpoints, thread: supervisor.spawn(ThreadKind::BoundSocket, None, run)? })
    }
}

fn bind(socket: &zmq::Socket, endpoint: &str) -> zmq::Result<String> {
    // With IPv6 on, the wildcard * would stand for both kinds of addresses.
    socket.set_ipv6(endpoint.contains('['))?;
    socket.bind(endpoint)?;
    Ok(socket.get_last_endpoint()?.unwrap_or_else(|_| endpoint.to_owned()))
}

/// A connection that stands.
struct EngineConnection {
    id: ConnectionId,
    /// Whether the monitor has told of it; a message can be read before that.
    is_monitored: bool,
}

/// The thread's own side.
struct BoundLoop {
    socket: zmq::Socket,
    monitor: zmq::Socket,
    decoders: Arc<Decoders>,
    topics: Topics,
    /// Connections that stand, by file descriptor.
    connections: FxHashMap<i32, EngineConnection>,
    /// Connections that were ever made.
    connected: u64,
}

impl BoundLoop {
    fn run(mut self, watch: &Watch) {
        while !self.decoders.are_stopping() {
            watch.begin(None);
            if watch.guarded(|| self.serve()).is_none() {
                self.disconnect_all();
            }
            watch.end();
        }
    }

    /// Takes every connection for lost after a panic: what was received and not handed on is missing in its streams.
    fn disconnect_all(&mut self) {
        warn!(connections = self.connections.len(), "connections of engines count as lost after a panic");
        self.topics = Topics::new(self.decoders.count());
        for (_, lost) in self.connections.drain() {
            self.decoders.connection_lost(lost.id);
        }
    }

    /// Takes what has registration_sender, or waits for a while.
    fn serve(&mut self) {
        let mut items = [self.socket.as_poll_item(zmq::POLLIN), self.monitor.as_poll_item(zmq::POLLIN)];
        if let Err(error) = zmq::poll(&mut items, STOP_CHECK_MS) {
            // Interrupted by a signal: look again.
            debug!("waiting for messages: {error}");
            return;
        }
        if items[1].is_readable() {
            self.read_monitor();
        }
        self.receive(MESSAGES_PER_TURN_MAX);
    }

    /// Takes in what the monitor says about connections.
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
                    // What came before the loss of the connection is in order.
                    self.receive(usize::MAX);
                    if let Some(lost) = self.connections.remove(&descriptor) {
                        self.decoders.connection_lost(lost.id);
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes at most so many messages that have registration_sender, and hands them on by pod.
    fn receive(&mut self, messages_max: usize) {
        let (mut taken, mut bytes) = (0, 0);
        while taken < messages_max && !self.decoders.are_stopping() {
            let Ok(first) = self.socket.recv_msg(zmq::DONTWAIT) else { break };
            let Some(message) = self.read_message(first) else { break };
            // No message is known to make the thread fail, so a topic does.
            #[cfg(any(test, feature = "fault-injection"))]
            assert!(!message.frames[0].ends_with(b"@fault"), "a test asked for a failure");
            taken += 1;
            bytes += message.frames.iter().map(Vec::len).sum::<usize>();
            if let Err(error) = self.topics.sort(message) {
                debug!("{error}");
                self.decoders.reject(error.reason());
            }
            if bytes >= BYTES_PER_DELIVERY || taken % MESSAGES_PER_TURN_MAX == 0 {
                self.deliver_sorted();
                bytes = 0;
            }
        }
        self.deliver_sorted();
    }

    /// The message that begins with this frame.
    fn read_message(&mut self, mut first: zmq::Message) -> Option<PodMessage> {
        let connection = self.connection_of(&mut first);
        let mut has_more = first.get_more();
        let mut frames = vec![first.to_vec()];
        while has_more {
            // The frames of a message admit group.
            let frame = self.socket.recv_msg(zmq::DONTWAIT).ok()?;
            has_more = frame.get_more();
            frames.push(frame.to_vec());
        }
        Some(PodMessage { connection, frames })
    }

    /// The connection that a message came over.
    fn connection_of(&mut self, first: &mut zmq::Message) -> ConnectionId {
        let descriptor = first.gets(CONNECTION_PROPERTY).and_then(|descriptor| descriptor.parse().ok());
        let Some(descriptor) = descriptor else { return ConnectionId(0) };
        if let Some(connection) = self.connections.get(&descriptor) {
            return connection.id;
        }
        let id = self.new_connection();
        self.connections.insert(descriptor, EngineConnection { id, is_monitored: false });
        id
    }

    fn new_connection(&mut self) -> ConnectionId {
        self.connected += 1;
        ConnectionId(self.connected)
    }

    fn deliver_sorted(&mut self) {
        let Self { topics, decoders, .. } = self;
        topics.drain(|pod, messages| decoders.deliver_to_pod(pod, messages));
    }
}

impl Drop for BoundLoop {
    /// ZeroMQ's own threads wait until somebody takes what they say of a monitored socket: nothing is said from here
    /// on.
    fn drop(&mut self) {
        if let Err(error) = self.socket.monitor("inproc://bound-unmonitored", 0) {
            debug!("the bound socket's monitor cannot be silenced: {error}");
        }
    }
}
