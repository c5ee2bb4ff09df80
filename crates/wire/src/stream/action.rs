//! Outputs of a stream: actions, trust, and events for counters.

use crate::cursor::Cursor;

/// Instruction of a stream to its caller, to be executed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<P> {
    /// Apply this message.
    Apply {
        /// The message's sequence number.
        sequence: u64,
        /// The message's batch.
        payload: P,
    },
    /// Open a new replay socket, close any other replay socket of the stream, and request all messages from a
    /// sequence number on.
    RequestReplay {
        /// Identifies the request. Replies are passed back with it.
        attempt: u32,
        /// First sequence number requested.
        from: u64,
    },
    /// Close the replay socket.
    CloseReplay,
    /// Clear all state derived from the stream.
    Clear(ClearReason),
    /// Trust in the messages delivered up to the cursor, from now on.
    Trust(StreamTrust),
    /// Reason why messages after the cursor are missing and may still arrive, from now on. While there is a reason, the
    /// stream is not exact, even if its trust is.
    Pending(Option<PendingReason>),
    /// An occurrence to be counted and logged.
    Record(StreamEvent),
}

flash_indexer_core::named_enum! {
    /// Reason why the state derived from a stream is cleared.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ClearReason {
        /// The publisher has restarted with an empty cache.
        Restarted = "engine_restarted",
        /// The publisher may have restarted during a disconnection, and its replay buffer no longer shows it.
        EpochUnknown = "epoch_unknown",
        /// So much of the stream is lost that most of the derived state may be stale.
        TooMuchLost = "too_many_messages_lost",
        /// The publisher replays its whole history, after messages were lost.
        Replayed = "history_replayed",
    }
}

/// Reason why messages after a stream's cursor are missing and may still arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PendingReason {
    /// No contact with the publisher yet, or messages are held back.
    #[error("the engine was not reached yet")]
    FirstContact,
    /// A repair is in progress, or the live messages have not reached the imported position.
    #[error("missing messages are being replayed")]
    Recovering {
        /// One more than the last live sequence number, if this connection has received a live message.
        end: Option<u64>,
    },
    /// Messages after the last live one were dropped, could not be decoded or could not be replayed, or the last one arrived
    /// with a lower sequence number. The next live sequence number shows how many are missing.
    #[error(
        "the last messages may be missing: they were dropped, could not be decoded or replayed, or arrived out of order, or the service was paused; the next message shows how many"
    )]
    TailLost,
    /// The connection was lost and the publisher's epoch is not verified since, or the publisher seems to have restarted and no message
    /// proves it yet.
    #[error("the engine may have restarted: the connection was lost, or messages that would show it are missing")]
    Unverified,
}

impl PendingReason {
    /// One of each, for the documentation.
    pub const EACH: [Self; 4] = [Self::FirstContact, Self::Recovering { end: None }, Self::TailLost, Self::Unverified];

    /// Meaning of the reason, and the event that ends it.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::FirstContact => {
                "No contact with the engine since the registration, or its history is about to be requested."
            }
            Self::Recovering { .. } => {
                "A replay is running; `replay` in `/workers` has its progress. Ends with the replay."
            }
            Self::TailLost => {
                "Ends when a replay returns them, or the number of the next message shows that none is missing. They are requested every 30 s."
            }
            Self::Unverified => {
                "The rank keeps its blocks. Ends when a replay or the next message shows whether the engine restarted."
            }
        }
    }
}

/// Trust in the messages delivered up to the cursor. Derived from the known losses, never set directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamTrust {
    /// No message of this epoch was received.
    Cold,
    /// Every message of this epoch was delivered once and in order.
    Exact,
    /// Messages are missing.
    Degraded(DegradedReason),
}

/// Reason why a stream is degraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DegradedReason {
    /// The stream's first messages were not received.
    #[error("{missed} {} published before the first one received", plural(*.missed, "message was", "messages were"))]
    StartUnknown {
        /// Number of messages before the first one received.
        missed: u64,
    },
    /// A gap that could not be repaired.
    #[error("{missed} {} lost before number {next}", plural(*.missed, "message was", "messages were"))]
    Lost {
        /// Number of lost messages.
        missed: u64,
        /// Sequence number after them.
        next: u64,
    },
    /// The connection was lost and the publisher's epoch cannot be verified.
    #[error("the connection was lost, and the engine may have restarted meanwhile")]
    Unverified,
    /// The connection was lost for longer than the publisher's replay buffer covers.
    #[error("the connection was lost for longer than the engine's replay buffer covers: its state was cleared")]
    EpochUnknown,
    /// The state was imported from a peer where it was degraded.
    #[error("the state was imported from a peer where it was not exact")]
    Inherited,
}

impl DegradedReason {
    /// One of each, for the documentation.
    pub const EACH: [Self; 5] = [
        Self::StartUnknown { missed: 7 },
        Self::Lost { missed: 7, next: 42 },
        Self::Unverified,
        Self::EpochUnknown,
        Self::Inherited,
    ];

    /// Meaning of the reason.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::StartUnknown { .. } => "The engine is older than the service, or than its own replay buffer.",
            Self::Lost { .. } => {
                "No replay returned them: there is no replay endpoint, or its buffer is smaller than the gap. If it did not respond, the whole history is requested every 30 s."
            }
            Self::Unverified => "The engine has no replay endpoint, so nothing shows whether it restarted.",
            Self::EpochUnknown => "The service cleared the rank, and knows what was published since.",
            Self::Inherited => "The peer, the dump or the snapshot had lost changes of it.",
        }
    }
}

/// Occurrence in a stream, for counters and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEvent {
    /// A live sequence number is not the successor of the last one.
    Gap {
        /// Number of messages in the gap.
        missed: u64,
    },
    /// Messages are lost for good.
    Lost {
        /// Number of lost messages.
        messages: u64,
    },
    /// A repair has ended.
    Replay(ReplayOutcome),
    /// A live message was received twice, byte for byte; the second one is ignored.
    Duplicate,
    /// A repair has begun.
    ReplayStarted {
        /// First sequence number requested.
        from: u64,
        /// One more than the last live sequence number, if this connection has received a live message.
        end: Option<u64>,
    },
    /// The publisher's message under the cursor's sequence number differs from the one received before: the epoch has
    /// changed.
    Mismatch {
        /// The cursor's sequence number.
        sequence: u64,
    },
    /// A limit of waiting messages was reached: `dropped` messages were dropped, or the repair was given up.
    WaitingFull {
        /// Number of messages dropped.
        dropped: u64,
    },
}

flash_indexer_core::named_enum! {
    /// Outcome of a repair.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ReplayOutcome {
        /// The engine replayed all requested messages.
        Complete = "complete",
        /// The engine no longer had all of them.
        Truncated = "truncated",
        /// The replay endpoint did not answer, or five requests in a row returned nothing new.
        GivenUp = "given_up",
        /// The connection was lost, or the engine restarted, before the end of the replay.
        Interrupted = "interrupted",
    }
}

/// Position in a stream and the trust up to it: sufficient to resume the stream in another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPosition {
    /// The last message delivered; none if there was none.
    pub cursor: Option<Cursor>,
    /// Number of epochs of the publisher seen so far, the current one included; 1 for the first.
    pub epoch: u64,
    /// Trust in all messages up to the cursor.
    pub trust: StreamTrust,
}

/// Singular or plural form for a count.
#[must_use]
pub const fn plural(count: u64, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}
