//! All connections to engines, as the registry uses them.

use std::sync::Arc;
use std::time::Instant;

use super::decoders::OnRetired;
use super::event_source::ConnectError;
use super::listener::Listener;
use super::sockets::{BindError, BoundOptions};

/// Connections to the engines of listeners. Those of the service are `sources::Sources`.
pub trait Transport: Send + Sync {
    /// Binds a socket that engines connect to. Returns its addresses, with the actual ports.
    ///
    /// # Errors
    ///
    /// When an address cannot be bound.
    fn bind(&self, options: &BoundOptions) -> Result<Vec<String>, BindError>;

    /// Begins to receive the events of a listener. Connects and reconnects in the background. For a bound pod, it only enables
    /// replays.
    ///
    /// # Errors
    ///
    /// As [`EventSource::open`](super::EventSource::open).
    fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError>;

    /// Closes a listener, as [`EventSource::close`](super::EventSource::close) does.
    fn close(&self, listener: &Arc<Listener>, retired: OnRetired) -> bool;

    /// Closes every connection and stops the threads. A thread that does not end by `deadline` is abandoned.
    fn stop(&self, deadline: Instant);
}
