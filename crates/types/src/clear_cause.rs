//! Causes for which a rank holds nothing any more.

use flash_indexer_wire::ClearReason;

/// Why a rank's blocks were all forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClearCause {
    /// The engine dropped its cache.
    Engine,
    /// The service forgot the rank because of its stream.
    Stream(ClearReason),
    /// The service forgot the rank for another reason: it was unregistered, or its state could not be used.
    Service,
}
