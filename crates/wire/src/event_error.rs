//! Events that cannot be used, and limits of an event.

use crate::msgpack::MsgpackError;

/// Limit of the blocks that an event names. Engines name one to some thousand.
pub const EVENT_BLOCKS_MAX: u32 = 1 << 18;
/// Limit of the tokens in an event's list of tokens.
pub const EVENT_TOKENS_MAX: u32 = 1 << 22;
/// Limit of the extra keys of all blocks of an event.
pub const EVENT_KEYS_MAX: u32 = 1 << 18;
/// Limit of the copy counts of an event: each may be a separate change.
pub const EVENT_COUNTS_MAX: u32 = 1 << 16;
/// Limit of the fields of an event.
pub const EVENT_FIELDS_MAX: u32 = 1 << 10;
/// Longest unknown event type, or name of an unknown field, that is repeated, in characters.
pub(crate) const KIND_CHARS_MAX: usize = 64;

/// One event cannot be used; the other events of its batch can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Neither a tagged array nor a map with `type`.
    #[error("not an event: expected [\"BlockStored\", …] or {{\"type\": \"BlockStored\", …}}")]
    NotAnEvent,
    /// A type other than the known ones.
    #[error("unknown event type {kind:?}")]
    UnknownType {
        /// The type as sent, truncated to 64 characters.
        kind: String,
    },
    /// A mandatory field is absent.
    #[error("field {field} is missing")]
    MissingField {
        /// The field's name.
        field: &'static str,
    },
    /// A field has a type that no known engine sends.
    #[error("field {field} has the wrong type")]
    WrongType {
        /// The field's name.
        field: &'static str,
    },
    /// A field's value is out of range.
    #[error("field {field} has a value out of range")]
    OutOfRange {
        /// The field's name.
        field: &'static str,
    },
    /// A map has a field twice, so its meaning is unknown.
    #[error("a field of the event is repeated: publish each field once")]
    RepeatedField,
    /// A list has too many elements: other engines would wait while it is decoded.
    #[error("field {field} has {count} elements; at most {max} are allowed: publish events of fewer blocks")]
    TooLong {
        /// The field's name.
        field: &'static str,
        /// Elements of the list.
        count: u32,
        /// Limit of the elements.
        max: u32,
    },
    /// The event was pulled in another format, and could not be used there ([`PullReader`](crate::PullReader)).
    #[error("{why}")]
    LeftOut {
        /// Label for counters.
        reason: &'static str,
        /// The cause, truncated to 256 characters.
        why: String,
    },
    /// The event's own MessagePack is malformed.
    #[error("failed to decode the event: {0}")]
    Malformed(#[from] MsgpackError),
}

impl EventError {
    pub(crate) fn unknown_type(kind: &[u8]) -> Self {
        Self::UnknownType { kind: String::from_utf8_lossy(kind).chars().take(KIND_CHARS_MAX).collect() }
    }

    /// Label for counters.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotAnEvent => "not_an_event",
            Self::UnknownType { .. } => "unknown_event_type",
            Self::MissingField { .. } => "missing_field",
            Self::WrongType { .. } => "wrong_type",
            Self::OutOfRange { .. } => "out_of_range",
            Self::RepeatedField => "repeated_field",
            Self::TooLong { .. } => "event_too_large",
            Self::LeftOut { reason, .. } => reason,
            Self::Malformed(_) => "malformed_event",
        }
    }
}
