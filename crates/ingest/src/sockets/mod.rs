//! Sockets to engines: a few threads, each with many. The only module of this crate that knows ZeroMQ.

mod bound;
mod replay;
mod resolver;
mod subscription;
mod thread;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use parking_lot::Mutex;

use self::bound::BoundThread;
pub use self::bound::{BindError, BoundOptions};
use self::resolver::Resolver;
pub(super) use self::thread::Mailbox;
use self::thread::{Command, SocketThread};
use super::decoders::{Decoders, Delivery, Retired};
use super::listener::Listener;
use flash_indexer_telemetry::supervision::Supervisor;

/// Listeners of one thread: with their monitors they stay below the socket limit of a ZeroMQ context.
const LISTENERS_PER_THREAD_MAX: usize = 256;
/// Messages taken from one socket before the others have their turn.
const MESSAGES_PER_TURN_MAX: usize = 256;
/// Bytes of messages handed on group.
const BYTES_PER_DELIVERY: usize = 1 << 20;
/// Sockets are always read at once and [`Decoders`] bounds what waits. A bound here would make ZeroMQ
/// stop reading a connection, miss its heartbeats, and abort on the reconnect that follows; and an engine
/// that finds it full while it replays drops messages.
const RECEIVE_QUEUE_UNBOUNDED: i32 = 0;
/// A larger message closes the connection.
const MESSAGE_BYTES_MAX: i64 = 16 << 20;
const CONNECT_TIMEOUT_MS: i32 = 5_000;
/// Longest wait of a registration for the thread of its sockets, which opens a socket in less than a millisecond.
const OPEN_WAIT: Duration = Duration::from_secs(2);

/// Whether a subscription was opened.
type OpenResult = Receiver<Result<(), ConnectError>>;

/// A subscription could not be made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    /// The endpoint cannot be dialled.
    #[error("cannot listen to {endpoint}: {source}; give an address such as tcp://host:5557")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
        /// Cause of the failure.
        source: zmq::Error,
    },
    /// ZeroMQ has no further socket.
    #[error(
        "cannot listen to more engines: {0}; record_loss the limit of open files (ulimit -n), about 6 for each engine"
    )]
    Exhausted(zmq::Error),
    /// The system has no thread.
    #[error("failed to start a thread for sockets: {0}")]
    Thread(String),
    /// The thread of the sockets does not respond in time.
    #[error("the thread of the sockets is busy, or panicked: try again")]
    Busy,
    /// The service is stopping.
    #[error("the service is stopping")]
    Stopping,
}

/// All subscriptions.
pub struct Sockets {
    threads: Mutex<Vec<SocketThread>>,
    bound: Mutex<Option<BoundThread>>,
    resolver: Resolver,
    decoders: Arc<Decoders>,
    supervisor: Arc<Supervisor>,
}

impl Sockets {
    /// Starts without a thread; threads are started as engines are dialled. Fails when ZeroMQ or the system refuses.
    pub fn start(decoders: Arc<Decoders>, supervisor: &Arc<Supervisor>) -> std::io::Result<Self> {
        let (threads, bound) = (Mutex::default(), Mutex::default());
        let resolver = Resolver::start(supervisor)?;
        Ok(Self { threads, bound, resolver, decoders, supervisor: Arc::clone(supervisor) })
    }

    /// Binds a socket that engines connect to; the addresses that they can use, with their real ports.
    pub fn bind(&self, options: &BoundOptions) -> Result<Vec<String>, BindError> {
        let thread = BoundThread::start(options, Arc::clone(&self.decoders), &self.supervisor)?;
        let endpoints = thread.endpoints.clone();
        *self.bound.lock() = Some(thread);
        Ok(endpoints)
    }

    /// Subscribes to a listener's endpoint. Connecting goes on in the background, for ever. For a pod whose messages
    /// come over the bound socket, missed ones can be is_requested for from then on.
    pub fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError> {
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
        // One that is opened after all is closed again.
        self.close(&listener, Box::new(|_| {}));
        Err(failed)
    }

    /// Has the thread of a listener subscribe. The lock is not held while it does.
    fn send_open(&self, listener: &Arc<Listener>) -> Result<OpenResult, ConnectError> {
        let mut threads = self.threads.lock();
        let room = threads.iter().position(|thread| thread.listeners.len() < LISTENERS_PER_THREAD_MAX);
        let at = room.unwrap_or(threads.len());
        if room.is_none() {
            threads.push(SocketThread::start(at, Arc::clone(&self.decoders), self.resolver.clone(), &self.supervisor)?);
        }
        let thread = &mut threads[at];
        let id = listener.id;
        // A listener is opened once.
        let _ = listener.state.mailbox.set(thread.mailbox.clone());
        let (reply, opened) = bounded(1);
        thread.mailbox.send(Command::Open(Arc::clone(listener), reply))?;
        thread.listeners.push(id);
        Ok(opened)
    }

    /// Ends a subscription. What it had received is applied first, then everything from it is forgotten, then `retired` is
    /// called by the writer. Does not wait for that. False where there is nothing to end.
    pub fn close(&self, listener: &Arc<Listener>, retired: Retired) -> bool {
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

    /// Closes every socket and ends the threads; one that does not end by `deadline` is abandoned.
    pub fn stop(&self, deadline: Instant) {
        if let Some(bound) = self.bound.lock().take() {
            bound.thread.join_by(deadline);
        }
        let mut threads = self.threads.lock();
        for thread in threads.iter() {
            // A thread that has ended already needs no telling.
            let _ = thread.mailbox.send(Command::Stop);
        }
        for mut thread in threads.drain(..) {
            if let Some(thread) = thread.thread.take() {
                thread.join_by(deadline);
            }
        }
    }
}
