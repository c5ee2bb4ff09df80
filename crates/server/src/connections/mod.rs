//! A bound on open connections, under which slow clients do not shut others out.

mod open;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::{IncomingStream, Listener};
use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};
use tonic::transport::server::Connected;
use tracing::debug;

use flash_indexer_registry::Indexer;
use flash_indexer_telemetry::metrics::Bound;

pub(crate) use self::open::ConnectionHandle;
use self::open::{ConnectionState, OpenConnections};

/// What is spoken over a listener's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP, whose handlers report each request.
    Http,
    /// gRPC: a connection counts as idle since its last byte.
    Grpc,
}

/// Accepts connections. If there are too many, one that is idle or slow is closed, and each time that happens is
/// counted; if all are being answered, the new one waits.
pub(crate) struct BoundedListener {
    listener: TcpListener,
    protocol: Protocol,
    room: Arc<Semaphore>,
    open: Arc<OpenConnections>,
    indexer: Arc<Indexer>,
}

/// How often a connection that waits looks whether another one has become idle.
const ROOM_CHECK: Duration = Duration::from_millis(50);

impl BoundedListener {
    pub(crate) fn new(
        listener: TcpListener,
        protocol: Protocol,
        connections_max: usize,
        indexer: Arc<Indexer>,
    ) -> Self {
        let room = Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)));
        Self { listener, protocol, room, open: OpenConnections::new(connections_max), indexer }
    }

    /// Waits for room, and makes some.
    async fn room(&self) -> OwnedSemaphorePermit {
        if let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() {
            return permit;
        }
        self.indexer.metrics().bound(Bound::Connections);
        loop {
            let closed = self.open.make_room();
            debug!(closed, "too many connections are open");
            let acquired = tokio::time::timeout(ROOM_CHECK, Arc::clone(&self.room).acquire_owned()).await;
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
        let room = self.room().await;
        // Answers are small and someone waits for them.
        let _ = stream.set_nodelay(true);
        let place = ConnectionSlot { state: self.open.open(address.ip()), open: Arc::clone(&self.open), _room: room };
        (Connection::new(stream, self.protocol, place), address)
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

/// A bounded listener as gRPC takes it.
impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Connection>>> {
        self.accepted.poll_recv(context).map(|connection| connection.map(Ok))
    }
}

/// Connections of a listener, one after the other.
pub(crate) struct Incoming {
    accepted: mpsc::Receiver<Connection>,
    accepting: JoinHandle<()>,
}

impl Incoming {
    /// Accepts until it is dropped.
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

/// A connection on which nothing moves for so long is closed.
const IDLE_DEADLINE: Duration = Duration::from_secs(60);

/// A client that takes longer to send the head of a request is cut off.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);

/// A connection's place among the open ones.
struct ConnectionSlot {
    state: Arc<ConnectionState>,
    open: Arc<OpenConnections>,
    _room: OwnedSemaphorePermit,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.open.close(&self.state);
    }
}

/// A connection that gives its place back when it ends, and ends when nothing moves on it, when it is slow, or when
/// another one needs its place.
pub(crate) struct Connection {
    stream: TcpStream,
    protocol: Protocol,
    idle: Pin<Box<Sleep>>,
    /// When the first byte of a request's head was read, and how many heads were read before.
    head_begun: Option<(Instant, u64)>,
    place: ConnectionSlot,
}

impl Connection {
    fn new(stream: TcpStream, protocol: Protocol, place: ConnectionSlot) -> Self {
        let idle = Box::pin(tokio::time::sleep(IDLE_DEADLINE));
        Self { stream, protocol, idle, head_begun: None, place }
    }

    /// What stands for the connection in requests.
    pub(crate) fn handle(&self) -> ConnectionHandle {
        ConnectionHandle(Arc::clone(&self.place.state))
    }

    /// Whether bytes that were read are of a request's head that takes too long.
    fn is_head_late(&mut self) -> bool {
        if self.protocol == Protocol::Grpc {
            self.place.state.moved();
            return false;
        }
        let Some(heads) = self.place.state.heads_if_between_requests() else { return false };
        match self.head_begun {
            Some((begun, before)) if before == heads => begun.elapsed() > HEAD_DEADLINE,
            _ => {
                self.head_begun = Some((Instant::now(), heads));
                false
            }
        }
    }

    /// What is written answers what was read: the next byte that is read begins a head.
    fn watch_written<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.head_begun = None;
        }
        self.watch(written, context)
    }

    /// Restarts the deadline when something has moved, and fails when it has passed.
    fn watch<T>(&mut self, moved: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if self.place.state.is_evicted(context.waker()) {
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
        if buf.filled().len() > before && self.is_head_late() {
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
