//! ZeroMQ sockets to engines. No other module of this crate uses ZeroMQ.
//!
//! A socket thread owns the subscriptions of up to 256 listeners, and their replay sockets. One further thread owns the
//! bound socket, which engines connect to.

mod bound;
mod pauses;
mod replay;
mod resolver;
mod subscription;
mod thread;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use flash_indexer_curve::Curve;
use parking_lot::Mutex;

use self::bound::BoundThread;
pub use self::bound::{BindError, BoundOptions};
use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_types::networks::EngineNetworks;

use self::resolver::Resolver;
use self::thread::{Command, SocketThread};
use super::decoders::{Decoders, Delivery, OnRetired};
use super::event_source::{ConnectError, EventSource};
use super::listener::Listener;

/// Limit of listeners of one thread: with their monitors they stay below the socket limit of a ZeroMQ context.
const LISTENERS_PER_THREAD_MAX: usize = 256;
/// Bytes of messages that fill a delivery. A decoder takes one delivery of each engine in turn.
const BYTES_PER_DELIVERY: usize = 64 << 10;
/// Sockets have no receive limit: they are read at once, and the queues of [`Decoders`] have a byte budget. With a limit,
/// ZeroMQ would stop reading a connection, miss its heartbeats, and abort on the reconnect. An engine whose replay fills
/// the queue would drop messages.
const RECEIVE_QUEUE_UNBOUNDED: i32 = 0;
/// Limit of a message. A larger one closes the connection.
const MESSAGE_BYTES_MAX: i64 = 16 << 20;
const CONNECT_TIMEOUT_MS: i32 = 5_000;
const HEARTBEAT_INTERVAL_MS: i32 = 5_000;
const HEARTBEAT_TIMEOUT_MS: i32 = 15_000;
/// How long an engine keeps a connection without heartbeats. Longer than the timeout: after a pause of this process the
/// engine still has the connection and its queued messages.
const HEARTBEAT_TTL_MS: i32 = 120_000;
/// Longest wait of a registration for its socket thread, which opens a socket in less than a millisecond.
const OPEN_WAIT: Duration = Duration::from_secs(2);

/// A socket for messages of engines.
fn open_socket(context: &zmq::Context, kind: zmq::SocketType) -> zmq::Result<zmq::Socket> {
    let socket = context.socket(kind)?;
    socket.set_linger(0)?;
    socket.set_rcvhwm(RECEIVE_QUEUE_UNBOUNDED)?;
    socket.set_maxmsgsize(MESSAGE_BYTES_MAX)?;
    Ok(socket)
}

/// A socket for live messages with this prefix of their topics, which detects lost connections; and its monitor, at a
/// private address.
fn open_live_socket(context: &zmq::Context, topic: &[u8], monitor_at: &str) -> zmq::Result<(zmq::Socket, zmq::Socket)> {
    let socket = open_socket(context, zmq::SUB)?;
    socket.set_heartbeat_ivl(HEARTBEAT_INTERVAL_MS)?;
    socket.set_heartbeat_timeout(HEARTBEAT_TIMEOUT_MS)?;
    socket.set_heartbeat_ttl(HEARTBEAT_TTL_MS)?;
    socket.set_tcp_keepalive(1)?;
    socket.set_subscribe(topic)?;
    socket.monitor(monitor_at, i32::from(zmq::SocketEvent::ALL.to_raw()))?;
    let monitor = context.socket(zmq::PAIR)?;
    monitor.set_linger(0)?;
    monitor.connect(monitor_at)?;
    Ok((socket, monitor))
}

/// Receives the outcome of opening a subscription.
type OpenResult = Receiver<Result<(), ConnectError>>;

/// All subscriptions, with their threads.
pub struct Sockets {
    threads: Mutex<Vec<SocketThread>>,
    bound: Mutex<Option<BoundThread>>,
    resolver: Resolver,
    curve: Option<Arc<Curve>>,
    decoders: Arc<Decoders>,
    supervisor: Arc<Supervisor>,
}

impl Sockets {
    /// Starts the resolver, which returns addresses in these networks only. Socket threads are started as listeners are
    /// opened. With keys, the service connects over CURVE alone to engines that have one.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub fn start(
        decoders: Arc<Decoders>,
        networks: &EngineNetworks,
        curve: Option<Arc<Curve>>,
        supervisor: &Arc<Supervisor>,
    ) -> std::io::Result<Self> {
        let (threads, bound) = (Mutex::default(), Mutex::default());
        let resolver = Resolver::start(networks, supervisor)?;
        Ok(Self { threads, bound, resolver, curve, decoders, supervisor: Arc::clone(supervisor) })
    }

    /// Binds a socket that engines connect to. Returns its addresses, with the actual ports.
    ///
    /// # Errors
    ///
    /// When an address cannot be bound.
    pub fn bind(&self, options: &BoundOptions) -> Result<Vec<String>, BindError> {
        let thread = BoundThread::start(options, self.curve.as_ref(), Arc::clone(&self.decoders), &self.supervisor)?;
        let endpoints = thread.endpoints.clone();
        *self.bound.lock() = Some(thread);
        Ok(endpoints)
    }

    /// Sends the command to subscribe to a thread with room. The lock is not held while the thread subscribes.
    fn send_open(&self, listener: &Arc<Listener>) -> Result<OpenResult, ConnectError> {
        let mut threads = self.threads.lock();
        let room = threads.iter().position(|thread| thread.listeners.len() < LISTENERS_PER_THREAD_MAX);
        let at = room.unwrap_or(threads.len());
        if room.is_none() {
            let (decoders, resolver, curve) = (Arc::clone(&self.decoders), self.resolver.clone(), self.curve.clone());
            threads.push(SocketThread::start(at, decoders, resolver, curve, &self.supervisor)?);
        }
        let thread = &mut threads[at];
        let id = listener.id;
        listener.set_replay_client(Box::new(thread.mailbox.clone()));
        let (reply, opened) = bounded(1);
        thread.mailbox.send(Command::Open(Arc::clone(listener), reply))?;
        thread.listeners.push(id);
        Ok(opened)
    }
}

impl EventSource for Sockets {
    fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError> {
        if listener.options.needs_no_socket() {
            return Ok(());
        }
        let opened = self.send_open(&listener)?;
        let failed = match opened.recv_timeout(OPEN_WAIT) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(RecvTimeoutError::Disconnected) if self.decoders.are_stopping() => ConnectError::Stopping,
            Err(_) => ConnectError::Busy,
        };
        // A subscription that is opened late is closed again.
        self.close(&listener, Box::new(|_| {}));
        Err(failed)
    }

    fn close(&self, listener: &Arc<Listener>, retired: OnRetired) -> bool {
        if listener.options.needs_no_socket() {
            self.decoders.deliver(listener, Delivery::Retire(retired));
            return true;
        }
        let mut threads = self.threads.lock();
        let thread = threads.iter_mut().find(|thread| thread.listeners.contains(&listener.id));
        thread.is_some_and(|thread| {
            thread.listeners.retain(|&id| id != listener.id);
            thread.mailbox.send(Command::Close(Arc::clone(listener), retired)).is_ok()
        })
    }

    fn stop(&self, deadline: Instant) {
        if let Some(bound) = self.bound.lock().take() {
            bound.thread.join_by(deadline);
        }
        let mut threads = self.threads.lock();
        for thread in threads.iter() {
            // It fails only if the thread has ended already.
            let _ = thread.mailbox.send(Command::Stop);
        }
        for thread in threads.drain(..) {
            thread.thread.join_by(deadline);
        }
    }
}
