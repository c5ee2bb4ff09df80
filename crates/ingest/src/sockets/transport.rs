//! Connections to engines, as the registry uses them.

use std::sync::Arc;
use std::time::Instant;

use super::{BindError, BoundOptions, ConnectError};
use crate::decoders::Retired;
use crate::listener::Listener;

/// Subscriptions to the engines of listeners. [`Sockets`](super::Sockets) are those of the service.
pub trait Transport: Send + Sync {
    /// Binds a socket that engines connect to. Returns its addresses, with the actual ports.
    ///
    /// # Errors
    ///
    /// When an address cannot be bound.
    fn bind(&self, options: &BoundOptions) -> Result<Vec<String>, BindError>;

    /// Subscribes to a listener's endpoint. Connects and reconnects in the background. For a bound pod, it only enables
    /// replays.
    ///
    /// # Errors
    ///
    /// When the endpoint is invalid, the system refuses a resource, or the socket thread does not respond in time.
    fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError>;

    /// Closes a subscription, without waiting. The decoder handles the messages received so far, then the blocks of the
    /// listener are removed, then the writer calls `retired`. Returns false if the listener has no subscription.
    fn close(&self, listener: &Arc<Listener>, retired: Retired) -> bool;

    /// Closes every socket and stops the threads. A thread that does not end by `deadline` is abandoned.
    fn stop(&self, deadline: Instant);
}
