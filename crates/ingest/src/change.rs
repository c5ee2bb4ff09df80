//! What the decoding of a stream requests of its model's writer.

use flash_indexer_core::DpRank;
use flash_indexer_core::groups::RankEvent;
use flash_indexer_wire::{Pending, StreamTrust};

use flash_indexer_types::ClearCause;

/// One step, to be taken in order with the others of its stream: trust changes with what it is about.
pub(super) enum Change {
    /// Apply an event of a rank.
    Event(DpRank, RankEvent),
    /// The rank's cache is known to be empty: what was lost before no longer counts.
    Cleared(DpRank),
    /// A change was lost for good: of this rank, or of any rank of the stream.
    RecordLoss(Option<DpRank>, String),
    /// Trust in all ranks of the stream, as of the last applied message.
    Trust(StreamTrust),
    /// What is missing behind the last applied message.
    Pending(Option<Pending>),
    /// The decoder knows of all drops up to this run.
    DropsAcknowledged(u64),
    /// Forget all that the stream has told of a rank.
    Forget(DpRank),
    /// Why the next changes of the batch forget ranks, for explanations.
    ForgetCause(ClearCause),
    /// When the engine made the next events, in seconds since the Unix epoch, for explanations. Holds until `MessageApplied`.
    EventTime(f64),
    /// Everything of a message was applied.
    MessageApplied {
        /// Its number.
        sequence: u64,
        /// When the engine made it, in seconds since the Unix epoch.
        timestamp: Option<f64>,
    },
    /// Everything up to a message was applied by somebody else.
    PositionImported(u64),
    /// The stream has started over: what it said before this is void.
    Restarted,
    /// Something is to be done between two messages.
    Run(Box<dyn FnOnce() + Send>),
}
