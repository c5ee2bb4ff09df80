//! Facts of an event besides the blocks that it changes.

use std::time::Instant;

use flash_indexer_wire::RemovalReason;

/// Time and reason of an event, for explanations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventContext {
    /// Time of the event, not of its receipt.
    pub at: Instant,
    /// Why blocks were removed, if the engine says so.
    pub removal: Option<RemovalReason>,
}

impl From<Instant> for EventContext {
    fn from(at: Instant) -> Self {
        Self { at, removal: None }
    }
}
