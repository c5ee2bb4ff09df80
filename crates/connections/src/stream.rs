//! TCP stream of a connection.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use super::open::{ConnectionState, OpenConnections};

/// Time without a byte in either direction after which a connection is closed.
const IDLE_DEADLINE: Duration = Duration::from_secs(60);

/// Slot of an open connection; it is freed on drop.
pub(crate) struct ConnectionSlot {
    pub(crate) state: Arc<ConnectionState>,
    open: Arc<OpenConnections>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlot {
    pub(crate) fn new(open: &Arc<OpenConnections>, client: IpAddr, permit: OwnedSemaphorePermit) -> Self {
        Self { state: open.open(client), open: Arc::clone(open), _permit: permit }
    }

    #[cfg(test)]
    pub(crate) fn of(state: Arc<ConnectionState>, open: Arc<OpenConnections>, permit: OwnedSemaphorePermit) -> Self {
        Self { state, open, _permit: permit }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.open.close(&self.state);
    }
}

/// TCP stream that frees its slot when it ends. Reads and writes fail once it is idle too long, or evicted.
pub(crate) struct WatchedStream {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    received_bytes: u64,
    slot: ConnectionSlot,
}

impl WatchedStream {
    pub(crate) fn new(stream: TcpStream, slot: ConnectionSlot) -> Self {
        let idle = Box::pin(tokio::time::sleep(IDLE_DEADLINE));
        Self { stream, idle, received_bytes: 0, slot }
    }

    /// Bytes received since the stream was accepted.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Restarts the idle deadline after progress; fails if it has passed, if the connection is evicted, or if its client reads
    /// no answers.
    fn watch<T>(&mut self, moved: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let ConnectionSlot { state, open, .. } = &self.slot;
        if state.is_evicted(context.waker()) || open.evict_unread(state) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if moved.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE_DEADLINE);
            return moved;
        }
        self.idle.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.received_bytes += (buf.filled().len() - before) as u64;
        self.watch(read, cx)
    }
}

impl AsyncWrite for WatchedStream {
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
