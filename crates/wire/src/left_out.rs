//! Events that the reader of an engine cannot use, in batches: the decoder rejects them in their place among the other events.

use crate::event_error::EventError;
use crate::fields::optional_text;
use crate::msgpack::{Reader, Token};

/// Type of the event that stands for one that is left out.
pub(crate) const LEFT_OUT: &str = "LeftOut";
/// Longest cause, in characters.
pub(crate) const WHY_CHARS_MAX: usize = 256;

/// Reasons for which readers and relays leave events out.
const REASONS: [&str; 21] = [
    "malformed_event",
    "unknown_event_type",
    "event_too_large",
    "token_count_mismatch",
    "block_size_mismatch",
    "followed_blocks",
    "too_many_ranks",
    "snapshot_incomplete",
    "snapshot_too_large",
    "hash_inputs_unknown",
    "salted_blocks",
    "adapter_name_too_long",
    "adapter_name_control_character",
    "malformed_batch",
    "not_a_batch",
    "too_many_events",
    "not_an_event",
    "missing_field",
    "wrong_type",
    "out_of_range",
    "repeated_field",
];

/// An event of an engine that its reader cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOutEvent {
    /// Label for counters: one of those of [`PullEventError::reason`](crate::PullEventError::reason), `snapshot_incomplete`,
    /// `snapshot_too_large`, or a reason of a relay.
    pub reason: &'static str,
    /// The cause, in words.
    pub why: String,
}

/// The error that such an event stands for. The reader is after the head of its map.
pub(crate) fn left_out(reader: &mut Reader<'_>, len: u32) -> Result<EventError, EventError> {
    let (mut reason, mut why) = ("not_an_event", String::new());
    for _ in 0..len {
        let Token::Text(key) = reader.next()? else { return Err(EventError::NotAnEvent) };
        match key {
            b"reason" => {
                let text = optional_text(reader, "reason")?.unwrap_or_default();
                reason = REASONS.into_iter().find(|known| *known == text).unwrap_or(reason);
            }
            b"why" => why = optional_text(reader, "why")?.unwrap_or_default().chars().take(WHY_CHARS_MAX).collect(),
            _ => reader.skip()?,
        }
    }
    Ok(EventError::LeftOut { reason, why })
}
