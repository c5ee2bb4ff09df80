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
            // Over HTTP/2, it is possible that no written byte belongs to an answer: a client holds answers back by its window.
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
        let read = ready!(self.transport.poll_stream(cx))?.poll_read(cx, buf);
        if self.protocol == Protocol::Grpc && buf.filled().len() > filled {
            self.state.record_activity();
        }
        // A TLS record need not carry a byte of a request: any received byte counts.
        if self.transport.received_bytes() > received && self.is_head_overdue() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(self.transport.poll_stream(cx))?.poll_write(cx, bytes);
        self.watch_written(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.transport.poll_stream(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transport.stream().map_or(Poll::Ready(Ok(())), |stream| stream.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.transport.poll_stream(cx))?.poll_write_vectored(cx, slices);
        self.watch_written(written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionHandle;

    fn connect_info(&self) -> ConnectionHandle {
        self.handle()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::ErrorKind;

    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::open::UNREAD_DEADLINE;
    use crate::stream::{ConnectionSlot, WatchedStream};

    /// Writes a byte on a connection with an answer that has waited this long for its client. Returns the result, and whether
    /// the write shows that the client reads.
    async fn write_after(waited: Duration, protocol: Protocol) -> (io::Result<usize>, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, client) = accepted.expect("a connection");
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.expect("a permit");
        let (open, state, _unread) = ConnectionState::with_unread_answer(waited, client.ip());
        let slot = ConnectionSlot::of(Arc::clone(&state), open, permit);
        let transport = Transport::plain(WatchedStream::new(stream, slot));
        let mut connection = Connection::new(transport, protocol, Arc::clone(&state));
        (poll_fn(|cx| Pin::new(&mut connection).poll_write(cx, b"x")).await, state.has_read())
    }

    #[test]
    fn a_connection_fails_when_its_client_reads_no_answer_for_too_long() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        for protocol in [Protocol::Http, Protocol::Grpc] {
            let (written, _) = runtime.block_on(write_after(2 * UNREAD_DEADLINE, protocol));
            assert_eq!(written.expect_err("it is closed").kind(), ErrorKind::ConnectionAborted, "{protocol:?}");
        }
    }

    #[test]
    fn written_bytes_show_over_http_1_alone_that_a_client_reads() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        for (protocol, shows) in [(Protocol::Http, true), (Protocol::Grpc, false)] {
            let (written, has_read) = runtime.block_on(write_after(UNREAD_DEADLINE / 2, protocol));
            assert_eq!((written.expect("it is open"), has_read), (1, shows), "{protocol:?}");
        }
    }
}
