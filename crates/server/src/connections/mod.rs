//! Limit of open connections, with eviction of slow and idle ones so that they cannot exhaust it.

mod open;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::{IncomingStream, Listener};
use flash_indexer_registry::Indexer;
use flash_indexer_telemetry::metrics::Limit;
use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};
use tonic::transport::server::Connected;
use tracing::debug;

pub(crate) use self::open::ConnectionHandle;
use self::open::{ConnectionState, OpenConnections};

/// Protocol of a listener's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP: handlers report the start and end of each request.
    Http,
    /// gRPC: a connection is idle since its last byte.
    Grpc,
}

/// TCP listener with a limit of open connections. At the limit, a new connection waits until an idle or slow one is
/// evicted, or another one ends. Each wait is counted.
pub(crate) struct BoundedListener {
    listener: TcpListener,
    protocol: Protocol,
    permits: Arc<Semaphore>,
    open: Arc<OpenConnections>,
    indexer: Arc<Indexer>,
}

/// Interval at which a waiting connection checks for one to evict.
const EVICTION_INTERVAL: Duration = Duration::from_millis(50);

impl BoundedListener {
    pub(crate) fn new(
        listener: TcpListener,
        protocol: Protocol,
        connections_max: usize,
        indexer: Arc<Indexer>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)));
        Self { listener, protocol, permits, open: OpenConnections::new(connections_max), indexer }
    }

    /// Waits for a permit, and evicts connections meanwhile.
    async fn acquire(&self) -> OwnedSemaphorePermit {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return permit;
        }
        self.indexer.metrics().limit_reached(Limit::Connections);
        loop {
            let evicted = self.open.evict();
            debug!(evicted, "connection limit reached");
            let acquired = tokio::time::timeout(EVICTION_INTERVAL, Arc::clone(&self.permits).acquire_owned()).await;
            if let Ok(permit) = acquired {
                return permit.expect("the semaphore is never closed");
            }
        }
    }
}

impl Listener for BoundedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let permit = self.acquire().await;
        // Responses are small and latency counts.
        let _ = stream.set_nodelay(true);
        let slot =
            ConnectionSlot { state: self.open.open(address.ip()), open: Arc::clone(&self.open), _permit: permit };
        (Connection::new(stream, self.protocol, slot), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl axum::extract::connect_info::Connected<IncomingStream<'_, BoundedListener>> for ConnectionHandle {
    fn connect_info(stream: IncomingStream<'_, BoundedListener>) -> Self {
        stream.io().handle()
    }
}

/// Accepted connections as the stream that tonic serves.
impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Connection>>> {
        self.accepted.poll_recv(context).map(|connection| connection.map(Ok))
    }
}

/// Accepted connections of a listener.
pub(crate) struct Incoming {
    accepted: mpsc::Receiver<Connection>,
    accepting: JoinHandle<()>,
}

impl Incoming {
    /// Accepts connections until the value is dropped.
    pub(crate) fn of(mut listener: BoundedListener) -> Self {
        let (sender, accepted) = mpsc::channel(1);
        let accepting = tokio::spawn(async move { while sender.send(listener.accept().await.0).await.is_ok() {} });
        Self { accepted, accepting }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// Time without a byte in either direction after which a connection is closed.
const IDLE_DEADLINE: Duration = Duration::from_secs(60);

/// Longest time for a client to send the head of a request.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);

/// Slot of an open connection; it is freed on drop.
struct ConnectionSlot {
    state: Arc<ConnectionState>,
    open: Arc<OpenConnections>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.open.close(&self.state);
    }
}

/// TCP connection that frees its slot when it ends. It is closed when it is idle too long, when a request's head is too
/// slow, or when it is evicted.
pub(crate) struct Connection {
    stream: TcpStream,
    protocol: Protocol,
    idle: Pin<Box<Sleep>>,
    /// Time at which the first byte of a request's head was read, and the number of heads read before.
    head_begun: Option<(Instant, u64)>,
    slot: ConnectionSlot,
}

impl Connection {
    fn new(stream: TcpStream, protocol: Protocol, slot: ConnectionSlot) -> Self {
        let idle = Box::pin(tokio::time::sleep(IDLE_DEADLINE));
        Self { stream, protocol, idle, head_begun: None, slot }
    }

    /// Handle of the connection for its requests.
    pub(crate) fn handle(&self) -> ConnectionHandle {
        ConnectionHandle(Arc::clone(&self.slot.state))
    }

    /// Whether the bytes just read belong to a request's head that exceeds its deadline.
    fn is_head_overdue(&mut self) -> bool {
        if self.protocol == Protocol::Grpc {
            self.slot.state.record_activity();
            return false;
        }
        let Some(heads) = self.slot.state.heads_if_between_requests() else { return false };
        match self.head_begun {
            Some((begun, before)) if before == heads => begun.elapsed() > HEAD_DEADLINE,
            _ => {
                self.head_begun = Some((Instant::now(), heads));
                false
            }
        }
    }

    /// Checks the deadlines after a write. Written bytes are a response, so the next byte read begins a head.
    fn watch_written<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.head_begun = None;
        }
        self.watch(written, context)
    }

    /// Restarts the idle deadline after progress; fails if it has passed or the connection is evicted.
    fn watch<T>(&mut self, moved: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if self.slot.state.is_evicted(context.waker()) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if moved.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE_DEADLINE);
            return moved;
        }
        self.idle.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before && self.is_head_overdue() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.watch(read, cx)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch_written(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch_written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
