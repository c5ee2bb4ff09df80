//! Subscriptions to engines: a few threads, each with many sockets. The only module of this crate
//! that knows ZeroMQ.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;
use tracing::{debug, warn};

use super::listener::{Connection, Listener};
use super::writer::{Delivery, Writers};

/// Listeners of one thread: with their monitors they stay below the socket limit of a ZeroMQ context.
const LISTENERS_PER_THREAD_MAX: usize = 256;
/// Messages taken from one socket before the others have their turn.
const MESSAGES_PER_TURN_MAX: usize = 256;
/// Sockets are always read at once and [`Writers`] bounds what waits. A bound here would make ZeroMQ
/// stop reading a connection, miss its heartbeats, and abort on the reconnect that follows.
const RECEIVE_QUEUE_UNBOUNDED: i32 = 0;
/// A larger message closes the connection.
const MESSAGE_BYTES_MAX: i64 = 16 << 20;
const HEARTBEAT_INTERVAL_MS: i32 = 5_000;
const HEARTBEAT_TIMEOUT_MS: i32 = 15_000;
const CONNECT_TIMEOUT_MS: i32 = 5_000;
const RECONNECT_MS_MIN: i32 = 100;
const RECONNECT_MS_MAX: i32 = 5_000;

/// How often subscriptions that ZeroMQ has given up are looked for.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// ZeroMQ gives a connection up for good after a message that is too large or is no message. One that
/// has ended and shows no attempt to connect again for so long is opened anew.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);

/// A subscription could not be made.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("cannot listen to {endpoint}: {source}; give an address such as tcp://host:5557 or ipc:///path")]
    Endpoint { endpoint: String, source: zmq::Error },
    #[error("cannot listen to more engines: {0}; raise the limit of open files (ulimit -n), about 6 for each engine")]
    Exhausted(zmq::Error),
    #[error("failed to start a thread for sockets: {0}")]
    Thread(String),
    #[error("the service is stopping")]
    Stopping,
}

/// All subscriptions.
pub(crate) struct Sockets {
    threads: Mutex<Vec<SocketThread>>,
    writers: Arc<Writers>,
}

impl Sockets {
    pub(crate) fn new(writers: Arc<Writers>) -> Self {
        Self { threads: Mutex::new(Vec::new()), writers }
    }

    /// Subscribes to a listener's endpoint. Connecting goes on in the background, for ever.
    pub(crate) fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError> {
        let mut threads = self.threads.lock();
        let room = threads.iter().position(|thread| thread.listeners.len() < LISTENERS_PER_THREAD_MAX);
        let at = room.unwrap_or(threads.len());
        if room.is_none() {
            threads.push(SocketThread::start(at, Arc::clone(&self.writers))?);
        }
        let id = listener.id;
        let (reply, opened) = bounded(1);
        threads[at].tell(Command::Open(listener, reply))?;
        opened.recv().map_err(|_| ConnectError::Stopping)??;
        threads[at].listeners.push(id);
        Ok(())
    }

    /// Ends a subscription. What it had received is applied first, then all that it told is
    /// forgotten; returns when that is done.
    pub(crate) fn close(&self, listener: &Arc<Listener>) {
        let (done, finished) = bounded(1);
        {
            let mut threads = self.threads.lock();
            let Some(thread) = threads.iter_mut().find(|thread| thread.listeners.contains(&listener.id)) else {
                return;
            };
            thread.listeners.retain(|&id| id != listener.id);
            if thread.tell(Command::Close(Arc::clone(listener), done)).is_err() {
                return;
            }
        }
        // An error means that the service stops, and everything is forgotten anyway.
        let _ = finished.recv();
    }

    /// Closes every socket and ends the threads.
    pub(crate) fn stop(&self) {
        let mut threads = self.threads.lock();
        for thread in threads.iter_mut() {
            // A thread that has ended already needs no telling.
            let _ = thread.tell(Command::Stop);
        }
        for mut thread in threads.drain(..) {
            if thread.thread.take().is_some_and(|thread| thread.join().is_err()) {
                warn!("a socket thread had panicked");
            }
        }
    }
}

enum Command {
    Open(Arc<Listener>, Sender<Result<(), ConnectError>>),
    Close(Arc<Listener>, Sender<()>),
    Stop,
}

/// A thread, how to reach it, and which listeners it has.
struct SocketThread {
    commands: Sender<Command>,
    /// Wakes the thread from its wait for messages.
    bell: zmq::Socket,
    listeners: Vec<u64>,
    thread: Option<JoinHandle<()>>,
}

impl SocketThread {
    fn start(number: usize, writers: Arc<Writers>) -> Result<Self, ConnectError> {
        let failed = |error: String| ConnectError::Thread(error);
        let context = zmq::Context::new();
        let address = "inproc://bell";
        let heard = context.socket(zmq::PAIR).map_err(|error| failed(error.to_string()))?;
        heard.bind(address).map_err(|error| failed(error.to_string()))?;
        let bell = context.socket(zmq::PAIR).map_err(|error| failed(error.to_string()))?;
        bell.connect(address).map_err(|error| failed(error.to_string()))?;
        let (commands, told) = unbounded();
        let work =
            SocketLoop { context, bell: heard, told, writers, open: BTreeMap::new(), unopened: Vec::new(), opened: 0 };
        let builder = std::thread::Builder::new().name(format!("engine-sockets-{number}"));
        let thread = builder.spawn(move || work.run()).map_err(|error| failed(error.to_string()))?;
        Ok(Self { commands, bell, listeners: Vec::new(), thread: Some(thread) })
    }

    fn tell(&mut self, command: Command) -> Result<(), ConnectError> {
        self.commands.send(command).map_err(|_| ConnectError::Stopping)?;
        // A bell that already rings need not be rung again.
        let _ = self.bell.send(&b""[..], zmq::DONTWAIT);
        Ok(())
    }
}

/// A subscription inside its thread.
struct Subscription {
    listener: Arc<Listener>,
    socket: zmq::Socket,
    monitor: zmq::Socket,
    /// When the connection ended, while nothing shows that it is tried again.
    ended_at: Option<Instant>,
}

/// The thread's own side.
struct SocketLoop {
    context: zmq::Context,
    bell: zmq::Socket,
    told: Receiver<Command>,
    writers: Arc<Writers>,
    open: BTreeMap<u64, Subscription>,
    /// Listeners whose subscription could not be opened anew yet.
    unopened: Vec<Arc<Listener>>,
    /// Subscriptions ever opened: names their monitors.
    opened: u64,
}

impl SocketLoop {
    fn run(mut self) {
        let mut checked = Instant::now();
        while !self.writers.are_stopping() {
            let ready = self.wait();
            if ready.bell {
                while self.bell.recv_bytes(zmq::DONTWAIT).is_ok() {}
            }
            for id in ready.monitors {
                if let Some(subscription) = self.open.get_mut(&id) {
                    subscription.follow_connection(&self.writers);
                }
            }
            if checked.elapsed() >= CHECK_INTERVAL {
                checked = Instant::now();
                self.reopen_given_up();
            }
            for id in ready.sockets {
                if let Some(subscription) = self.open.get(&id) {
                    subscription.receive(MESSAGES_PER_TURN_MAX, &self.writers);
                }
            }
            while let Ok(command) = self.told.try_recv() {
                match command {
                    Command::Open(listener, reply) => {
                        let opened = self.subscribe(listener);
                        // Whoever asked waits for this, or is gone.
                        let _ = reply.send(opened);
                    }
                    Command::Close(listener, done) => {
                        self.open.remove(&listener.id);
                        self.unopened.retain(|unopened| unopened.id != listener.id);
                        self.writers.deliver(Delivery::Retire(listener, done));
                    }
                    Command::Stop => return,
                }
            }
        }
    }

    /// Waits until a socket can be read or the bell rings.
    fn wait(&self) -> Ready {
        let mut items = vec![self.bell.as_poll_item(zmq::POLLIN)];
        for subscription in self.open.values() {
            items.push(subscription.socket.as_poll_item(zmq::POLLIN));
            items.push(subscription.monitor.as_poll_item(zmq::POLLIN));
        }
        if let Err(error) = zmq::poll(&mut items, CHECK_INTERVAL.as_millis() as i64) {
            // Interrupted by a signal: look again.
            debug!("waiting for messages: {error}");
            return Ready::default();
        }
        let mut ready = Ready { bell: items[0].is_readable(), ..Ready::default() };
        for (&id, pair) in self.open.keys().zip(items[1..].chunks_exact(2)) {
            if pair[0].is_readable() {
                ready.sockets.push(id);
            }
            if pair[1].is_readable() {
                ready.monitors.push(id);
            }
        }
        ready
    }

    fn subscribe(&mut self, listener: Arc<Listener>) -> Result<(), ConnectError> {
        let endpoint = listener.options.endpoint.clone();
        self.opened += 1;
        let subscription = Subscription::open(&self.context, self.opened, listener).map_err(|source| match source {
            zmq::Error::EMFILE | zmq::Error::ENOMEM => ConnectError::Exhausted(source),
            source => ConnectError::Endpoint { endpoint, source },
        })?;
        self.open.insert(subscription.listener.id, subscription);
        Ok(())
    }

    /// Opens subscriptions anew that ZeroMQ has given up.
    fn reopen_given_up(&mut self) {
        let given_up =
            |subscription: &&Subscription| subscription.ended_at.is_some_and(|ended| ended.elapsed() >= GIVEN_UP_AFTER);
        let listeners: Vec<_> = self.open.values().filter(given_up).map(|open| Arc::clone(&open.listener)).collect();
        for listener in listeners {
            self.open.remove(&listener.id);
            let why = format!(
                "the connection to {} ended for good: a message above {MESSAGE_BYTES_MAX} bytes, or something that is no engine; listening anew",
                listener.options.endpoint
            );
            warn!("{why}");
            listener.reject("connection_given_up", why.clone());
            if listener.has_received() {
                listener.degrade_all(why);
            }
            self.unopened.push(listener);
        }
        for listener in std::mem::take(&mut self.unopened) {
            if let Err(error) = self.subscribe(Arc::clone(&listener)) {
                listener.reject("connection_given_up", error.to_string());
                self.unopened.push(listener);
            }
        }
    }
}

#[derive(Default)]
struct Ready {
    bell: bool,
    sockets: Vec<u64>,
    monitors: Vec<u64>,
}

impl Subscription {
    fn open(context: &zmq::Context, number: u64, listener: Arc<Listener>) -> zmq::Result<Self> {
        let socket = context.socket(zmq::SUB)?;
        socket.set_linger(0)?;
        socket.set_rcvhwm(RECEIVE_QUEUE_UNBOUNDED)?;
        socket.set_connect_timeout(CONNECT_TIMEOUT_MS)?;
        socket.set_maxmsgsize(MESSAGE_BYTES_MAX)?;
        socket.set_heartbeat_ivl(HEARTBEAT_INTERVAL_MS)?;
        socket.set_heartbeat_timeout(HEARTBEAT_TIMEOUT_MS)?;
        socket.set_heartbeat_ttl(HEARTBEAT_TIMEOUT_MS)?;
        socket.set_reconnect_ivl(RECONNECT_MS_MIN)?;
        socket.set_reconnect_ivl_max(RECONNECT_MS_MAX)?;
        socket.set_tcp_keepalive(1)?;
        // With IPv6 on, a name that has addresses of both kinds is no longer tried by IPv4.
        socket.set_ipv6(listener.options.endpoint.contains('['))?;
        socket.set_subscribe(b"")?;

        let address = format!("inproc://monitor-{number}");
        socket.monitor(&address, i32::from(zmq::SocketEvent::ALL.to_raw()))?;
        let monitor = context.socket(zmq::PAIR)?;
        monitor.set_linger(0)?;
        monitor.connect(&address)?;
        socket.connect(&listener.options.endpoint)?;
        Ok(Self { listener, socket, monitor, ended_at: None })
    }

    /// Hands at most `messages_max` messages that have arrived to the listener's writer.
    fn receive(&self, messages_max: usize, writers: &Writers) {
        for _ in 0..messages_max {
            if writers.are_stopping() {
                return;
            }
            match self.socket.recv_multipart(zmq::DONTWAIT) {
                Ok(frames) => writers.deliver(Delivery::Message(Arc::clone(&self.listener), frames)),
                Err(zmq::Error::EAGAIN) => return,
                Err(error) => {
                    self.listener.reject("receive_failed", format!("failed to receive: {error}"));
                    return;
                }
            }
        }
    }

    /// Takes in what the monitor says about the connection.
    fn follow_connection(&mut self, writers: &Writers) {
        use zmq::SocketEvent as Event;
        while let Ok(frames) = self.monitor.recv_multipart(zmq::DONTWAIT) {
            let Some(event) = frames.first().and_then(|frame| frame.first_chunk::<2>()) else { continue };
            match Event::from_raw(u16::from_ne_bytes(*event)) {
                Event::CONNECT_DELAYED | Event::CONNECT_RETRIED | Event::CONNECTED => self.ended_at = None,
                Event::HANDSHAKE_SUCCEEDED => {
                    self.ended_at = None;
                    self.listener.set_connection(Connection::Connected);
                }
                Event::DISCONNECTED => {
                    self.ended_at = Some(Instant::now());
                    if self.listener.connection() == Connection::Connected {
                        self.listener.set_connection(Connection::Disconnected);
                        // What came before the loss is in order.
                        self.receive(usize::MAX, writers);
                        writers.deliver(Delivery::Interrupted(Arc::clone(&self.listener)));
                    }
                }
                Event::HANDSHAKE_FAILED_PROTOCOL | Event::HANDSHAKE_FAILED_NO_DETAIL => {
                    self.ended_at = Some(Instant::now());
                }
                _ => {}
            }
        }
    }
}
