//! Sockets to engines: a few threads, each with many. The only module of this crate that knows ZeroMQ.

mod replay;
mod resolver;
mod subscription;
mod thread;

use std::sync::Arc;

use crossbeam_channel::bounded;
use flash_indexer_wire::StreamPosition;
use parking_lot::Mutex;
use tracing::warn;

use self::resolver::Resolver;
pub(super) use self::thread::Mailbox;
use self::thread::{Command, SocketThread};
use super::decoders::Decoders;
use super::listener::Listener;

/// Listeners of one thread: with their monitors they stay below the socket limit of a ZeroMQ context.
const LISTENERS_PER_THREAD_MAX: usize = 256;
/// Messages taken from one socket before the others have their turn.
const MESSAGES_PER_TURN_MAX: usize = 256;
/// Bytes of messages handed on together.
const BYTES_PER_DELIVERY: usize = 1 << 20;
/// Sockets are always read at once and [`Decoders`] bounds what waits. A bound here would make ZeroMQ
/// stop reading a connection, miss its heartbeats, and abort on the reconnect that follows; and an engine
/// that finds it full while it replays drops messages.
const RECEIVE_QUEUE_UNBOUNDED: i32 = 0;
/// A larger message closes the connection.
const MESSAGE_BYTES_MAX: i64 = 16 << 20;
const CONNECT_TIMEOUT_MS: i32 = 5_000;

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
    resolver: Resolver,
    decoders: Arc<Decoders>,
}

impl Sockets {
    pub(crate) fn start(decoders: Arc<Decoders>) -> std::io::Result<Self> {
        Ok(Self { threads: Mutex::new(Vec::new()), resolver: Resolver::start()?, decoders })
    }

    /// Subscribes to a listener's endpoint. Connecting goes on in the background, for ever.
    pub(crate) fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError> {
        let mut threads = self.threads.lock();
        let room = threads.iter().position(|thread| thread.listeners.len() < LISTENERS_PER_THREAD_MAX);
        let at = room.unwrap_or(threads.len());
        if room.is_none() {
            threads.push(SocketThread::start(at, Arc::clone(&self.decoders), self.resolver.clone())?);
        }
        let thread = &mut threads[at];
        let id = listener.id;
        // A listener is opened once.
        let _ = listener.state.mailbox.set(thread.mailbox.clone());
        let (reply, opened) = bounded(1);
        thread.mailbox.tell(Command::Open(listener, reply))?;
        opened.recv().map_err(|_| ConnectError::Stopping)??;
        thread.listeners.push(id);
        Ok(())
    }

    /// Ends a subscription. What it had received is applied first, then all that it told is
    /// forgotten; returns when that is done, with where the stream stood.
    pub(crate) fn close(&self, listener: &Arc<Listener>) -> Option<StreamPosition> {
        let (done, finished) = bounded(1);
        {
            let mut threads = self.threads.lock();
            let thread = threads.iter_mut().find(|thread| thread.listeners.contains(&listener.id))?;
            thread.listeners.retain(|&id| id != listener.id);
            thread.mailbox.tell(Command::Close(Arc::clone(listener), done)).ok()?;
        }
        // An error means that the service stops, and everything is forgotten anyway.
        finished.recv().ok()
    }

    /// Closes every socket and ends the threads.
    pub(crate) fn stop(&self) {
        let mut threads = self.threads.lock();
        for thread in threads.iter() {
            // A thread that has ended already needs no telling.
            let _ = thread.mailbox.tell(Command::Stop);
        }
        for mut thread in threads.drain(..) {
            if thread.thread.take().is_some_and(|thread| thread.join().is_err()) {
                warn!("a socket thread had panicked");
            }
        }
    }
}
