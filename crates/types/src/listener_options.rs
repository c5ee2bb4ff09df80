//! Options of the listener to a rank's stream.

use std::num::NonZeroUsize;

use flash_indexer_core::RemovedCopies;
use flash_indexer_wire::ReplaySupport;

use crate::endpoints::{NO_EVENTS, is_bound, is_pulled, is_streamed};
use crate::{EngineKind, SharedCaches};

/// Options that a listener is registered with: the endpoints of its engine, and how the engine's messages are decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Endpoint at which the engine publishes: `tcp://host:port` or `ipc://path`; `bound` if it connects to this service;
    /// [`NO_EVENTS`] if it publishes none.
    pub endpoint: String,
    /// Endpoint at which the engine replays missing messages.
    pub replay_endpoint: Option<String>,
    /// Adapter of blocks whose events name none.
    pub lora_name: Option<String>,
    /// Kind of the engine, which selects the decoder; without a kind, it is detected.
    pub engine: Option<EngineKind>,
    /// Meaning of the engine's removals.
    pub removed_copies: RemovedCopies,
    /// Whether requests to the engine carry keys that its events lack, such as SGLang's `extra_key`. Its ranks are then
    /// never exact.
    pub extra_keys: bool,
    /// Blocks that the engine's cache has room for, if the engine publishes no events; none for the default.
    pub cache_blocks: Option<NonZeroUsize>,
    /// Caches of hosts and pools from which the engine loads blocks.
    pub shared_caches: SharedCaches,
}

impl ListenerOptions {
    /// Options without replay endpoint, adapter and kind. Each removal is of one copy.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            replay_endpoint: None,
            lora_name: None,
            engine: None,
            removed_copies: RemovedCopies::One,
            extra_keys: false,
            cache_blocks: None,
            shared_caches: SharedCaches::default(),
        }
    }

    /// Whether the engine publishes events. If not, the service makes its messages from routing decisions.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.endpoint != NO_EVENTS
    }

    /// Whether the messages arrive over the bound socket.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        is_bound(&self.endpoint)
    }

    /// Whether the service pulls the events over HTTP.
    #[must_use]
    pub fn is_pulled(&self) -> bool {
        is_pulled(&self.endpoint)
    }

    /// Whether the events are streamed over gRPC.
    #[must_use]
    pub fn is_streamed(&self) -> bool {
        is_streamed(&self.endpoint)
    }

    /// Whether the listener needs no socket of its own.
    #[must_use]
    pub fn needs_no_socket(&self) -> bool {
        self.is_bound() && self.replay_endpoint.is_none() || !self.has_events()
    }

    /// Whether the engine replays missing messages.
    #[must_use]
    pub fn replay(&self) -> ReplaySupport {
        match &self.replay_endpoint {
            Some(_) => ReplaySupport::Available,
            None if self.is_streamed() => ReplaySupport::OnReconnect,
            None => ReplaySupport::Unavailable,
        }
    }
}
