//! Ways in which the service receives events of engines.

use std::sync::Arc;
use std::time::Instant;

use super::decoders::OnRetired;
use super::listener::Listener;

/// A subscription that cannot be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    /// The endpoint cannot be dialled.
    #[error("failed to subscribe to {endpoint}: {why}; give an address such as tcp://host:5557")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
        /// Cause of the failure.
        why: String,
    },
    /// The system has no further socket.
    #[error(
        "failed to open a socket to the engine: {0}; raise the limit of open files (ulimit -n), about 6 for each engine"
    )]
    Exhausted(String),
    /// The system refuses a thread.
    #[error("failed to start a socket thread: {0}; raise the limit of threads")]
    Thread(String),
    /// The socket thread does not respond in time.
    #[error("failed to subscribe: the socket thread is busy or panicked; retry")]
    Busy,
    /// Too many engines are pulled.
    #[error("at most {max} engines can be pulled over HTTP; register the others with another replica, or over ZeroMQ")]
    TooManyPulls {
        /// The limit.
        max: usize,
    },
    /// Too many engines stream their events over gRPC.
    #[error(
        "at most {max} ranks can stream their events over gRPC; register the others with another replica, or over ZeroMQ"
    )]
    TooManyStreams {
        /// The limit.
        max: usize,
    },
    /// The service is stopping.
    #[error("the service is stopping")]
    Stopping,
}

/// A way in which the service receives the events of listeners, such as ZeroMQ or HTTP.
///
/// A source delivers messages to the decoder of a listener ([`Decoders::deliver`](crate::Decoders::deliver)), as the frames
/// `[topic, sequence number, payload]`. Between the messages it delivers the connections that they belong to. A source
/// whose engines number their events in another form converts the events into such messages. A thread of a source serves
/// several listeners only if none of them can block it.
pub trait EventSource: Send + Sync {
    /// Begins to receive the events of a listener. Connects and reconnects in the background.
    ///
    /// # Errors
    ///
    /// When the endpoint is invalid, the system refuses a resource, or a thread does not respond in time.
    fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError>;

    /// Closes a listener, without waiting. The decoder handles the messages received so far, then the blocks of the
    /// listener are removed, then the writer calls `retired`. Returns false if the listener is not open.
    fn close(&self, listener: &Arc<Listener>, retired: OnRetired) -> bool;

    /// Closes every listener and stops the threads. A thread that does not end by `deadline` is abandoned.
    fn stop(&self, deadline: Instant);
}
