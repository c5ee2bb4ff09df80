//! What the decoding of a stream asks of its model's writer.

use flash_indexer_core::DpRank;
use flash_indexer_core::groups::RankEvent;
use flash_indexer_wire::StreamTrust;

/// One step, to be taken in order with the others of its stream: trust changes with what it is about.
pub(super) enum Change {
    /// Apply an event of a rank.
    Event(DpRank, RankEvent),
    /// The rank's cache is known to be empty: whatever was missed before no longer counts.
    TrustRank(DpRank),
    /// A change of the rank was lost.
    DegradeRank(DpRank, String),
    /// All ranks of the stream are to be trusted so.
    Trust(StreamTrust),
    /// Whether the connection was lost, and nothing has shown yet that the engine is the same.
    Doubt(bool),
    /// A change was lost, and it is not known of which rank.
    DegradeAll(String),
    /// Forget all that the stream has told of a rank.
    Forget(DpRank),
    /// Everything of a message was applied.
    TakenIn {
        /// Its number.
        sequence: u64,
        /// When the engine made it, in seconds since the Unix epoch.
        stamped: Option<f64>,
    },
    /// Everything up to a message was applied by somebody else.
    TakenOver(u64),
    /// The stream has started over: what it said before this is void.
    Restarted,
    /// Something is to be done between two messages.
    Do(Box<dyn FnOnce() + Send>),
}
