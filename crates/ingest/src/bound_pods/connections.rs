//! Open connections of the bound socket, with the listeners of the ranks that publish over them.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::ConnectionId;
use crate::listener::{Listener, NoticeKind};

/// A listener whose connection is lost, with the number of the notice that degraded its ranks.
pub(crate) type LossNotice = (Arc<Listener>, u64);

/// Open connections of the bound socket, each with the listeners of the ranks that publish over it, by listener id. A rank
/// publishes over the connection of its last message that a decoder has handled.
///
/// Shared by the socket's thread and the decoders: ranks are degraded as soon as that thread reports a loss, even while
/// messages before the notice wait for their decoder.
#[derive(Default)]
pub(crate) struct OpenConnections(Mutex<FxHashMap<ConnectionId, FxHashMap<u64, Weak<Listener>>>>);

impl OpenConnections {
    /// Adds an accepted connection.
    pub(crate) fn open(&self, connection: ConnectionId) {
        self.0.lock().insert(connection, FxHashMap::default());
    }

    /// Removes a lost connection, and degrades the ranks that publish over it.
    pub(crate) fn close(&self, connection: ConnectionId) -> Vec<LossNotice> {
        let listeners = self.0.lock().remove(&connection).unwrap_or_default();
        let listeners = listeners.into_values().filter_map(|listener| listener.upgrade());
        listeners.map(|listener| (Arc::clone(&listener), listener.send_notice(NoticeKind::Disconnected))).collect()
    }

    /// Moves a listener to the connection of its last message. If that connection is lost, the listener's ranks are degraded at
    /// once: the decoder has not handled the loss yet. Returns whether the connection is open. Cost: amortized constant.
    pub(crate) fn attach(&self, listener: &Arc<Listener>, former: Option<ConnectionId>, to: ConnectionId) -> bool {
        let mut connections = self.0.lock();
        if let Some(former) = former.and_then(|former| connections.get_mut(&former)) {
            former.remove(&listener.id);
        }
        let Some(listeners) = connections.get_mut(&to) else {
            listener.send_notice(NoticeKind::Disconnected);
            return false;
        };
        // Dropped listeners are removed before the table grows. Reserving room for as many again amortizes the cost.
        if listeners.len() == listeners.capacity() {
            listeners.retain(|_, known| known.strong_count() > 0);
            listeners.reserve(listeners.len() + 1);
        }
        listeners.insert(listener.id, Arc::downgrade(listener));
        true
    }
}
