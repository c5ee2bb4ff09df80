//! One rank at one place of its stream.

use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::Salt;

use super::hold::Position;

/// Where a rank stands, and what its stream leaves unsaid from there on.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) position: Position,
    /// Blocks whose salt is inherited by those that follow them.
    pub(crate) salts: Vec<(SequenceHash, Salt)>,
}

/// Reads the index where a rank's writer is between two messages.
pub(crate) type Read = Box<dyn FnOnce(Place) + Send>;

/// When to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadAt {
    /// After everything that has come.
    Now,
    /// After the message of this number; never, if that has passed already.
    Message(u64),
}
