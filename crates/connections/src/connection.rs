//! A connection, with the deadline of a request's head.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tonic::transport::server::Connected;

use super::Protocol;
use super::open::{ConnectionHandle, ConnectionState};
use super::transport::Transport;

/// Longest time for a client to send the head of a request.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);

/// Connection that frees its slot when it ends. It is closed when it is idle too long, when its TLS handshake or a
/// request's head is too slow, or when it is evicted.
pub struct Connection {
    transport: Transport,
    protocol: Protocol,
    /// Time at which the first byte of a request's head was received, and the number of heads read before.
    head_begun: Option<(Instant, u64)>,
    state: Arc<ConnectionState>,
}

impl Connection {
    pub(crate) fn new(transport: Transport, protocol: Protocol, state: Arc<ConnectionState>) -> Self {
        Self { transport, protocol, head_begun: None, state }
    }

    /// Handle of the connection for its requests.
    #[must_use]
    pub fn handle(&self) -> ConnectionHandle {
        ConnectionHandle(Arc::clone(&self.state))
    }

    /// Whether the bytes just received belong to a request's head that exceeds its deadline.
    fn is_head_overdue(&mut self) -> bool {
        if self.protocol == Protocol::Grpc {
            return false;
        }
        let Some(heads) = self.state.heads_if_between_requests() else { return false };
        match self.head_begun {
            Some((begun, before)) if before == heads => begun.elapsed() > HEAD_DEADLINE,
            _ => {
                self.head_begun = Some((Instant::now(), heads));
                false
            }
        }
    }

    /// Checks a write. Written bytes are a response, so the next byte received begins a head.
    fn watch_written<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.head_begun = None;
            // Over HTTP/2, bytes may be written of which none is an answer's: its client holds them back by the window.
            if self.protocol == Protocol::Http {
                self.state.record_read();
            }
        }
        written
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.transport.poll_handshake(cx))?;
        let (filled, received) = (buf.filled().len(), self.transport.received_bytes());
        let read = Pin::new(&mut self.transport).poll_read(cx, buf);
        if self.protocol == Protocol::Grpc && buf.filled().len() > filled {
            self.state.record_activity();
        }
        // A TLS record need not carry a byte of a request: what counts is that bytes were received.
        if self.transport.received_bytes() > received && self.is_head_overdue() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.transport.poll_handshake(cx))?;
        let written = Pin::new(&mut self.transport).poll_write(cx, bytes);
        self.watch_written(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.transport.poll_handshake(cx))?;
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.transport.poll_handshake(cx))?;
        let written = Pin::new(&mut self.transport).poll_write_vectored(cx, slices);
        self.watch_written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionHandle;

    fn connect_info(&self) -> ConnectionHandle {
        self.handle()
    }
}
