//! Causes of the loss of all blocks of a rank.

use flash_indexer_wire::ClearReason;

/// Cause for which the index dropped all blocks of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClearCause {
    /// The engine cleared its cache.
    Engine,
    /// The service dropped the blocks because of the rank's stream.
    Stream(ClearReason),
    /// The service dropped the blocks for another reason: the rank was unregistered, or its state was invalid.
    Service,
}
