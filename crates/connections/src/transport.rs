//! The bytes of a connection: plain, or inside TLS after the handshake.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use flash_indexer_telemetry::metrics::Metrics;
use rustls::{Error as TlsError, InvalidMessage, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};
use tracing::debug;

use super::stream::WatchedStream;

/// Longest time from the acceptance of a connection to the end of its TLS handshake.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// Byte stream of a connection: plain or TLS. Both kinds write several slices at once.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Unpin {}

impl ByteStream for WatchedStream {}

impl ByteStream for TlsStream<WatchedStream> {}

/// Transport of a connection.
pub(crate) enum Transport {
    Plain(WatchedStream),
    Handshake(Box<Handshake>),
    Tls(Box<TlsStream<WatchedStream>>),
    /// The handshake failed, and the connection is closed.
    Failed,
}

/// A TLS handshake in progress.
pub(crate) struct Handshake {
    accept: Accept<WatchedStream>,
    deadline: Pin<Box<Sleep>>,
    metrics: Arc<Metrics>,
}

impl Transport {
    pub(crate) fn plain(stream: WatchedStream) -> Self {
        Self::Plain(stream)
    }

    /// TLS over a stream, from the handshake on.
    pub(crate) fn tls(
        stream: WatchedStream,
        config: Arc<ServerConfig>,
        deadline: Duration,
        metrics: Arc<Metrics>,
    ) -> Self {
        let accept = TlsAcceptor::from(config).accept(stream);
        Self::Handshake(Box::new(Handshake { accept, deadline: Box::pin(tokio::time::sleep(deadline)), metrics }))
    }

    /// Continues the handshake, if there is one. A failure is counted and ends the connection.
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let handshake = match self {
            Self::Plain(_) | Self::Tls(_) => return Poll::Ready(Ok(())),
            Self::Failed => return Poll::Ready(Err(ErrorKind::NotConnected.into())),
            Self::Handshake(handshake) => handshake,
        };
        let failed = match Pin::new(&mut handshake.accept).poll(cx) {
            Poll::Ready(Ok(stream)) => {
                *self = Self::Tls(Box::new(stream));
                return Poll::Ready(Ok(()));
            }
            Poll::Ready(Err(error)) => error,
            Poll::Pending => {
                ready!(handshake.deadline.as_mut().poll(cx));
                ErrorKind::TimedOut.into()
            }
        };
        let reason = reason(&failed);
        handshake.metrics.tls_handshake_failed(reason);
        debug!(reason, error = %failed, "TLS handshake failed");
        *self = Self::Failed;
        Poll::Ready(Err(failed))
    }

    /// The stream after the handshake; none before it, and after it failed.
    pub(crate) fn stream(&mut self) -> Option<Pin<&mut dyn ByteStream>> {
        match self {
            Self::Plain(stream) => Some(Pin::new(stream)),
            Self::Tls(stream) => Some(Pin::new(&mut **stream)),
            Self::Handshake(_) | Self::Failed => None,
        }
    }

    /// The stream, once there is no handshake to wait for.
    pub(crate) fn poll_stream(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn ByteStream>>> {
        ready!(self.poll_handshake(cx))?;
        Poll::Ready(self.stream().ok_or_else(|| ErrorKind::NotConnected.into()))
    }

    /// Bytes received since the connection was accepted.
    pub(crate) fn received_bytes(&self) -> u64 {
        match self {
            Self::Plain(stream) => stream.received_bytes(),
            Self::Tls(stream) => stream.get_ref().0.received_bytes(),
            Self::Handshake(_) | Self::Failed => 0,
        }
    }
}

/// Label of a failed handshake in metrics.
fn reason(error: &io::Error) -> &'static str {
    let Some(error) = error.get_ref().and_then(|source| source.downcast_ref::<TlsError>()) else {
        return match error.kind() {
            ErrorKind::TimedOut => "timeout",
            ErrorKind::ConnectionAborted => "evicted",
            _ => "closed",
        };
    };
    match error {
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => "not_tls",
        TlsError::NoCertificatesPresented => "no_client_certificate",
        TlsError::InvalidCertificate(_) => "client_certificate",
        // Most often the client does not trust the server's certificate.
        TlsError::AlertReceived(_) => "refused_by_client",
        TlsError::PeerIncompatible(_) | TlsError::NoApplicationProtocol => "incompatible",
        _ => "protocol",
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use flash_indexer_credentials::{ApplicationProtocol, KeyPairFiles, ServerTls, TlsFiles};
    use flash_indexer_telemetry::metrics::MetricNames;
    use flash_indexer_test_support::Authority;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Semaphore;

    use super::super::open::OpenConnections;
    use super::super::stream::ConnectionSlot;
    use super::*;

    #[test]
    fn a_handshake_ends_at_its_deadline() {
        let authority = Authority::new();
        let files = authority.issue("server");
        let pair = KeyPairFiles { certificate: files.certificate, key: files.key };
        let tls = ServerTls::load(TlsFiles { pair, client_ca: None }).expect("certificates");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("an address");
            let (_silent, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
            let (stream, client) = accepted.expect("a connection");
            let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.expect("a permit");
            let metrics = Arc::new(Metrics::new(MetricNames::Own));
            let open = OpenConnections::new(1, &metrics);
            let stream = WatchedStream::new(stream, ConnectionSlot::new(&open, client.ip(), permit));
            let config = tls.config(ApplicationProtocol::Http1);
            let mut transport = Transport::tls(stream, config, Duration::ZERO, metrics);
            let mut next = async || poll_fn(|cx| transport.poll_handshake(cx)).await.expect_err("it cannot succeed");
            assert_eq!(next().await.kind(), ErrorKind::TimedOut);
            assert_eq!(next().await.kind(), ErrorKind::NotConnected, "the connection stays closed");
        });
    }
}
