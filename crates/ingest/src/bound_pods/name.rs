//! Bound pods as listeners name them.

use flash_indexer_types::endpoints::is_bound;
use flash_indexer_types::pods::PodName;

use crate::listener::{Listener, ListenerOptions};

impl ListenerOptions {
    /// Whether the messages arrive over the bound socket.
    pub fn is_bound(&self) -> bool {
        is_bound(&self.endpoint)
    }

    /// Whether the listener needs no socket of its own.
    pub fn needs_no_socket(&self) -> bool {
        self.is_bound() && self.replay_endpoint.is_none() || !self.has_events()
    }
}

impl Listener {
    /// Name of the listener's pod, if its messages arrive over the bound socket.
    pub fn pod_name(&self) -> PodName {
        PodName { instance: self.instance.clone(), model_name: self.model.key().model_name.clone() }
    }
}
