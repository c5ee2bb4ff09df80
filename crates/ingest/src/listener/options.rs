//! Options of a listener.

use std::num::NonZeroUsize;

use flash_indexer_core::RemovedCopies;
use flash_indexer_types::SharedCaches;
use flash_indexer_types::endpoints::{NO_EVENTS, is_pulled, is_streamed};
use flash_indexer_wire::Replay;

/// Options that a listener is registered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Endpoint of the event stream.
    pub endpoint: String,
    /// Endpoint that replays messages.
    pub replay_endpoint: Option<String>,
    /// LoRA adapter of blocks that name none.
    pub lora_name: Option<String>,
    /// Kind of the engine, if it is registered.
    pub engine: Option<&'static str>,
    /// Copies that one removal event removes.
    pub removed_copies: RemovedCopies,
    /// Whether requests carry keys beside their tokens that the engine's events lack.
    pub extra_keys: bool,
    /// Blocks that the cache of an engine without events has room for; none for the default.
    pub cache_blocks: Option<NonZeroUsize>,
    /// Caches of hosts and pools from which the engine loads blocks.
    pub shared_caches: SharedCaches,
}

impl ListenerOptions {
    /// Whether the engine publishes events. If not, the service makes its messages from routing decisions.
    pub fn has_events(&self) -> bool {
        self.endpoint != NO_EVENTS
    }

    /// Whether the service pulls the events over HTTP.
    pub fn is_pulled(&self) -> bool {
        is_pulled(&self.endpoint)
    }

    /// Whether the events are streamed over gRPC.
    pub fn is_streamed(&self) -> bool {
        is_streamed(&self.endpoint)
    }

    /// Whether the engine replays missing messages.
    pub(crate) fn replay(&self) -> Replay {
        match &self.replay_endpoint {
            Some(_) => Replay::Available,
            None if self.is_streamed() => Replay::OnReconnect,
            None => Replay::Unavailable,
        }
    }
}
