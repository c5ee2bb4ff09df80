//! Errors of calls.

use flash_indexer_core::WorkerId;

/// A failed call. It has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// The instance is not registered.
    #[error("failed to find instance {}: it is not registered; register it first", .0.0)]
    NotRegistered(WorkerId),
    /// The instance is registered already.
    #[error("failed to register instance {}: it is registered already; unregister it first", .0.0)]
    AlreadyRegistered(WorkerId),
    /// The rank belongs to another stream of its instance.
    #[error(
        "failed to receive a stream of rank {rank}: the stream of rank {owner} has published batches of it; give each endpoint ranks of its own"
    )]
    RankOfOtherStream {
        /// Number of the rank.
        rank: u32,
        /// Number of the rank that names the other stream.
        owner: u32,
    },
    /// The index has as many ranks as its limit.
    #[error("failed to add a rank: the index has {max} ranks, its limit; unregister instances that are gone")]
    TooManyRanks {
        /// The limit.
        max: usize,
    },
    /// A change has panicked, so the content of the index is unknown.
    #[error("failed to use the index: an earlier change panicked; create a new index, and report the panic")]
    Abandoned,
}
