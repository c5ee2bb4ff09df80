//! A bound on open connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};
use tonic::transport::server::Connected;

use crate::indexer::Indexer;
use crate::metrics::Bound;

/// Accepts connections while there is room; further ones wait in the operating system's queue, and
/// each time that happens is counted.
pub(crate) struct BoundedListener {
    listener: TcpListener,
    room: Arc<Semaphore>,
    indexer: Arc<Indexer>,
}

impl BoundedListener {
    pub(crate) fn new(listener: TcpListener, connections_max: usize, indexer: Arc<Indexer>) -> Self {
        let room = Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)));
        Self { listener, room, indexer }
    }
}

impl Listener for BoundedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        if matches!(self.room.try_acquire(), Err(TryAcquireError::NoPermits)) {
            self.indexer.metrics().bound(Bound::Connections);
        }
        let room = Arc::clone(&self.room).acquire_owned().await.expect("the semaphore is never closed");
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // Answers are small and someone waits for them.
        let _ = stream.set_nodelay(true);
        (Connection::new(stream, room), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
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

/// A connection that gives its place back when it ends, and ends when nothing moves on it.
pub(crate) struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    _room: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, room: OwnedSemaphorePermit) -> Self {
        Self { stream, idle: Box::pin(tokio::time::sleep(IDLE_DEADLINE)), _room: room }
    }

    /// Starts the deadline anew when something has moved, and fails when it has passed.
    fn watch<T>(&mut self, moved: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if moved.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE_DEADLINE);
            return moved;
        }
        self.idle.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.watch(read, cx)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(written, cx)
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
        self.watch(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
