//! What a stream wants done, and what it can be believed.

use crate::cursor::Cursor;

/// Something for whoever feeds the stream to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<P> {
    /// Apply this message.
    Apply {
        /// Its number.
        sequence: u64,
        /// Its batch.
        payload: P,
    },
    /// Open a fresh replay socket, close any other of the stream, and ask for everything from a number on.
    Ask {
        /// Names the request: answers are brought back with it.
        attempt: u32,
        /// First number wanted.
        from: u64,
    },
    /// Close the replay socket: no more answers are wanted.
    HangUp,
    /// Forget all that the stream has told.
    Forget(Forgotten),
    /// From here on this is the trust in what was handed out up to the cursor.
    Trust(StreamTrust),
    /// From here on this is known to be missing behind the cursor, and may still arrive. While it is anything, the
    /// stream is not exact, whatever its trust.
    Pending(Option<Pending>),
    /// Nothing to do; worth counting.
    Note(Note),
}

/// Why what a stream told is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// The publisher has started again, with an empty cache.
    Restarted,
    /// It may have started again while nobody listened, and can no longer tell.
    LifeUnknown,
    /// So many messages are lost that little of what was known can still be so.
    TooMuchLost,
}

impl Forgotten {
    /// The name used in logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Restarted => "engine_restarted",
            Self::LifeUnknown => "epoch_unknown",
            Self::TooMuchLost => "too_many_messages_lost",
        }
    }
}

/// What is known to be missing behind a stream's cursor, and may still arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Pending {
    /// No contact with the publisher was made yet, or messages are held.
    #[error("the engine was not reached yet")]
    FirstContact,
    /// A repair runs, or the live messages have not reached the position that was taken over.
    #[error("missing messages are being replayed")]
    Recovering {
        /// One more than the number of the last live message, if one was received over this connection.
        end: Option<u64>,
    },
    /// Messages after the last one were dropped, unreadable, or could not be replayed. The number of the next live one
    /// shows how many.
    #[error(
        "the last messages were dropped, could not be read or could not be replayed; the next one shows how many are missing"
    )]
    TailLost,
    /// The connection was lost and nothing shows yet whether the publisher is still the same one.
    #[error("the connection was lost, and the engine may have started again unseen")]
    Unverified,
}

/// How far what a stream has handed out can be relied on, as of its cursor. It is computed from what is known to be
/// missing, and never set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamTrust {
    /// Nothing was received in this life of the publisher.
    Cold,
    /// Every message from the first one of this life was handed out, once and in order.
    Exact,
    /// Something is missing.
    Degraded(Degraded),
}

/// What is missing of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Degraded {
    /// The stream was not heard from its start.
    #[error("{missed} {} published before the first one received", plural(*.missed, "message was", "messages were"))]
    StartUnknown {
        /// Messages before the first one.
        missed: u64,
    },
    /// A gap that could not be repaired.
    #[error("{missed} {} lost before number {next}", plural(*.missed, "message was", "messages were"))]
    Lost {
        /// Messages lost.
        missed: u64,
        /// The message after them.
        next: u64,
    },
    /// The connection was lost and nothing shows whether the publisher is still the same one.
    #[error("the connection was lost, and the engine may have started again unseen")]
    Unverified,
    /// The connection was lost for longer than the publisher keeps messages.
    #[error("the connection was lost for longer than the engine keeps messages: what was known is forgotten")]
    LifeUnknown,
    /// It was so where the state was taken over from.
    #[error("the state was taken over from a peer that was not sure of it")]
    Inherited,
}

/// Something that happened to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Live messages did not follow each other.
    Gap {
        /// Messages between them.
        missed: u64,
    },
    /// Messages that can no longer be had.
    Lost {
        /// How many.
        messages: u64,
    },
    /// A repair has ended.
    Replay(ReplayOutcome),
    /// A live message was received twice, byte for byte; the second one is ignored.
    Duplicate,
    /// A repair has begun.
    ReplayStarted {
        /// First number wanted.
        from: u64,
        /// One more than the number of the last live message, if one was received over this connection.
        end: Option<u64>,
    },
    /// The publisher's message of the cursor's number is another one than before: it is of another epoch.
    Mismatch {
        /// The cursor's number.
        sequence: u64,
    },
    /// A bound on waiting messages was hit: `dropped` were dropped, or the repair was given up.
    WaitingFull {
        /// Messages dropped.
        dropped: u64,
    },
}

/// How a repair ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayOutcome {
    /// All that was missed was brought.
    Complete,
    /// The publisher no longer had all of it.
    Truncated,
    /// The publisher's endpoint did not answer, or not with what was missing.
    GivenUp,
    /// The connection to the publisher was lost, or it started again, before the end.
    Interrupted,
}

impl ReplayOutcome {
    /// A short name for counting.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Truncated => "truncated",
            Self::GivenUp => "given_up",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A place in a stream, with what is known of it: enough to go on from there elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPosition {
    /// The last message handed out; none if there was none.
    pub cursor: Option<Cursor>,
    /// Lives of the publisher that were seen, this one included; 1 for the first.
    pub epoch: u64,
    /// How far everything up to the cursor can be believed.
    pub trust: StreamTrust,
}

/// The word, or words, that agree with a count.
#[must_use]
pub const fn plural(count: u64, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}
