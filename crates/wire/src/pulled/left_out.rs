//! Events of the pull API that are left out, in batches: the decoder rejects them in their place among the other events.

use rmp::encode::{write_array_len, write_f64, write_map_len, write_nil, write_str, write_uint};

use super::PullEventError;
use crate::decode::EventError;
use crate::fields::optional_text;
use crate::msgpack::{Reader, Token};

/// Type of the event that stands for one that is left out.
pub(crate) const LEFT_OUT: &str = "LeftOut";
/// Longest cause, in characters.
const WHY_CHARS_MAX: usize = 256;

/// Reasons for which a reader of another source leaves events out.
const OTHER_REASONS: [&str; 2] = ["snapshot_incomplete", "snapshot_too_large"];

/// An event of an engine that its reader cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOutEvent {
    /// Label for counters, one of those of [`PullEventError::reason`], `snapshot_incomplete` or `snapshot_too_large`.
    pub reason: &'static str,
    /// The cause, in words.
    pub why: String,
}

/// A batch with one event that stands for the one that is left out.
pub(super) fn batch(timestamp: f64, error: &PullEventError, rank: Option<u32>) -> Vec<u8> {
    let why: String = error.to_string().chars().take(WHY_CHARS_MAX).collect();
    let mut out = Vec::new();
    let mut write = || -> Result<(), Box<dyn std::error::Error>> {
        write_array_len(&mut out, 3)?;
        write_f64(&mut out, timestamp)?;
        write_array_len(&mut out, 1)?;
        write_map_len(&mut out, 3)?;
        for text in ["type", LEFT_OUT, "reason", error.reason(), "why", &why] {
            write_str(&mut out, text)?;
        }
        match rank {
            Some(rank) => drop(write_uint(&mut out, rank.into())?),
            None => write_nil(&mut out)?,
        }
        Ok(())
    };
    write().expect("writing to a Vec cannot fail");
    out
}

/// The error that such an event stands for. The reader is behind the head of its map.
pub(crate) fn left_out(reader: &mut Reader<'_>, len: u32) -> Result<EventError, EventError> {
    let (mut reason, mut why) = ("not_an_event", String::new());
    for _ in 0..len {
        let Token::Text(key) = reader.next()? else { return Err(EventError::NotAnEvent) };
        match key {
            b"reason" => {
                let text = optional_text(reader, "reason")?.unwrap_or_default();
                let known = PullEventError::REASONS.into_iter().chain(OTHER_REASONS);
                reason = { known }.find(|known| *known == text).unwrap_or(reason);
            }
            b"why" => why = optional_text(reader, "why")?.unwrap_or_default().chars().take(WHY_CHARS_MAX).collect(),
            _ => reader.skip()?,
        }
    }
    Ok(EventError::LeftOut { reason, why })
}
