//! Changes that a decoder sends to its model's writer.

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{DpRank, SequenceHash};
use flash_indexer_types::ClearCause;
use flash_indexer_wire::{PendingReason, RemovalReason, StreamTrust};

use crate::listener::{Listener, NoticeKind};
use crate::resume_point::ReadInParts;

/// One change of an index or of its trust. The writer applies the changes of a stream in order, so that the trust state
/// changes with the blocks that it is about.
pub(super) enum Change {
    /// Apply an event of a rank.
    Event(DpRank, RankEvent),
    /// Apply an event of a rank, without the blocks that have a copy in its tier: the engine publishes them again.
    Refresh(DpRank, RankEvent),
    /// Apply an event of a move, by an engine that publishes the removal of the last copy only. If the rank has several
    /// copies of a block, it is unknown whether one or all of them have left the tier.
    MoveLastCopy(DpRank, RankEvent),
    /// The rank's cache is empty: earlier losses no longer count.
    Cleared(DpRank),
    /// Record a lost change that no replay can return, of this rank or of any rank of the stream.
    RecordLoss(Option<DpRank>, String),
    /// Trust state of all ranks of the stream, as of the last applied message.
    Trust(StreamTrust),
    /// Messages that are missing after the last applied one.
    Pending(Option<PendingReason>),
    /// Acknowledge this and earlier notices of the kind: the changes so far record everything that is missing because of them.
    NoticesAcknowledged(NoticeKind, u64),
    /// A change of a rank other than these was refused.
    RecordLossOfUnlisted(Vec<DpRank>, String),
    /// Remove all blocks of a rank.
    Forget(DpRank),
    /// The salt of blocks that were stored after this one is unknown if the rank does not hold it.
    ParentSaltUnknown(DpRank, SequenceHash),
    /// The salts of these blocks, which are published again by sequence hash alone, are unknown if the rank does not hold
    /// them. Precedes the event.
    CopySaltUnknown(DpRank, Vec<SequenceHash>),
    /// The next event of the rank stores salted blocks. Blocks that wait for one of them were hashed without its salt.
    SaltedStore(DpRank),
    /// An entry of the engine's cache is not indexed.
    EntryOmitted(DpRank),
    /// Cause of the next `Forget` changes of the batch, for explanations.
    ForgetCause(ClearCause),
    /// Engine's timestamp of the next events, in seconds since the Unix epoch, for explanations. Holds until
    /// `MessageApplied`.
    EventTime(f64),
    /// Why the next events of the rank remove blocks, for explanations. Holds until the next one, or `MessageApplied`.
    RemovalReason(Option<RemovalReason>),
    /// All events of a message are applied.
    MessageApplied {
        /// Sequence number of the message.
        sequence: u64,
        /// Engine's timestamp, in seconds since the Unix epoch.
        timestamp: Option<f64>,
    },
    /// The decoder again applies the events of this rank, which was unregistered for a while.
    Resumed(DpRank),
    /// The state up to this sequence number was imported.
    PositionImported(u64),
    /// The stream has restarted: changes queued before this one were discarded.
    Restarted,
    /// Read the index between two messages, in parts.
    Read(ReadInParts),
}

impl Change {
    /// Acknowledges every notice that the decoder of a restarted stream has received: earlier acknowledgements were discarded
    /// with the other changes.
    pub(super) fn acknowledge_received(listener: &Listener) -> [Self; 2] {
        [NoticeKind::Dropped, NoticeKind::Disconnected]
            .map(|kind| Self::NoticesAcknowledged(kind, listener.last_notice(kind)))
    }
}
