//! Limit of open connections, TLS, and HTTP. Slow and idle connections are evicted, so that they cannot exhaust the limit.
//!
//! | file | role |
//! |---|---|
//! | `open.rs` | table of open connections, and the choice of connections to evict |
//! | `stream.rs` | a connection's TCP stream, with its idle deadline and its eviction |
//! | `connection.rs` | a connection, with the deadline of a request's head |
//! | `serving.rs` | HTTP on accepted connections |
//! | `polled_again.rs` | a connection's future, which is polled again at once when it wakes itself |
//! | `transport.rs` | the bytes of a connection: plain, or inside TLS after the handshake |

mod connection;
mod open;
mod polled_again;
mod serving;
mod stream;
mod transport;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use flash_indexer_credentials::{ApplicationProtocol, ServerTls};
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use futures_core::Stream;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tracing::debug;

pub use self::connection::Connection;
use self::open::OpenConnections;
pub use self::open::{ConnectionHandle, ReadingGuard, RequestGuard, UnreadGuard};
pub use self::serving::serve;
use self::stream::{ConnectionSlot, WatchedStream};
use self::transport::{HANDSHAKE_DEADLINE, Transport};

/// Protocol of a listener's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP: handlers report the start and end of each request.
    Http,
    /// gRPC: a connection is idle since its last byte.
    Grpc,
}

impl Protocol {
    /// Protocol that is negotiated inside TLS.
    const fn application(self) -> ApplicationProtocol {
        match self {
            Self::Http => ApplicationProtocol::Http1,
            Self::Grpc => ApplicationProtocol::Http2,
        }
    }
}

/// TCP listener with a limit of open connections, each plain or inside TLS. At the limit, a new connection waits until an idle or slow one is
/// evicted, or another one ends. Each wait is counted.
#[derive(Debug)]
pub struct BoundedListener {
    listener: TcpListener,
    protocol: Protocol,
    tls: Option<Arc<ServerTls>>,
    permits: Arc<Semaphore>,
    open: Arc<OpenConnections>,
    metrics: Arc<Metrics>,
}

/// Interval at which a waiting connection checks for one to evict.
const EVICTION_INTERVAL: Duration = Duration::from_millis(50);

impl BoundedListener {
    /// A listener of at most `connections_max` open connections, at least one.
    #[must_use]
    pub fn new(
        listener: TcpListener,
        protocol: Protocol,
        tls: Option<Arc<ServerTls>>,
        connections_max: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)));
        let open = OpenConnections::new(connections_max, &metrics);
        Self { listener, protocol, tls, permits, open, metrics }
    }

    /// Waits for a permit, and evicts connections meanwhile.
    async fn acquire(&self) -> OwnedSemaphorePermit {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return permit;
        }
        self.metrics.limit_reached(Limit::Connections);
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
        let slot = ConnectionSlot::new(&self.open, address.ip(), permit);
        let state = Arc::clone(&slot.state);
        let stream = WatchedStream::new(stream, slot);
        // The task that serves the connection does the handshake, so a slow client delays no other.
        let transport = match &self.tls {
            None => Transport::plain(stream),
            Some(tls) => {
                let (config, metrics) = (tls.config(self.protocol.application()), Arc::clone(&self.metrics));
                Transport::tls(stream, config, HANDSHAKE_DEADLINE, metrics)
            }
        };
        (Connection::new(transport, self.protocol, state), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl axum::extract::connect_info::Connected<&Connection> for ConnectionHandle {
    fn connect_info(connection: &Connection) -> Self {
        connection.handle()
    }
}

/// Accepted connections as the stream that tonic serves.
impl Stream for IncomingConnections {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Connection>>> {
        self.accepted.poll_recv(context).map(|connection| connection.map(Ok))
    }
}

/// Accepted connections of a listener.
#[derive(Debug)]
pub struct IncomingConnections {
    accepted: mpsc::Receiver<Connection>,
    /// Its task ends when it is dropped.
    _accepting: JoinSet<()>,
}

impl IncomingConnections {
    /// Accepts connections until the value is dropped.
    #[must_use]
    pub fn of(mut listener: BoundedListener) -> Self {
        let (sender, accepted) = mpsc::channel(1);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move { while sender.send(listener.accept().await.0).await.is_ok() {} });
        Self { accepted, _accepting: accepting }
    }
}
