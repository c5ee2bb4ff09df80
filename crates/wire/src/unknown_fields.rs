//! Fields of known events that this version does not decode.

use std::fmt::{self, Write};

use crate::event_error::{EventError, KIND_CHARS_MAX};
use crate::msgpack::{Reader, Token};

/// Field of a known event that this version does not decode. The event is used without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UnknownField<'a> {
    /// Type of the event.
    pub event: &'static str,
    /// The field.
    pub name: FieldName<'a>,
}

/// Name of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldName<'a> {
    /// Key in a map, as sent.
    Key(&'a [u8]),
    /// Position in an array, counted from the event's type, which is at zero.
    Position(usize),
}

impl fmt::Display for FieldName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => {
                String::from_utf8_lossy(key).chars().take(KIND_CHARS_MAX).try_for_each(|c| f.write_char(c))
            }
            Self::Position(at) => write!(f, "field {at}"),
        }
    }
}

/// Limit of the unknown fields that the events of a batch report together.
pub const UNKNOWN_FIELDS_MAX: usize = 16;

/// Collects the unknown fields of one event.
pub(crate) struct UnknownFields<'a, 'f> {
    pub(crate) event: &'static str,
    pub(crate) found: &'f mut Vec<UnknownField<'a>>,
}

impl<'a> UnknownFields<'a, '_> {
    pub(crate) fn add(&mut self, name: FieldName<'a>) {
        let field = UnknownField { event: self.event, name };
        if self.found.len() < UNKNOWN_FIELDS_MAX && !self.found.contains(&field) {
            self.found.push(field);
        }
    }

    /// Skips a field at a position of an array. Nil is not reported.
    pub(crate) fn skip(&mut self, at: usize, reader: &mut Reader<'a>) -> Result<(), EventError> {
        if reader.clone().next()? != Token::Nil {
            self.add(FieldName::Position(at + 1));
        }
        Ok(reader.skip()?)
    }

    /// Skips a field of a map.
    pub(crate) fn skip_named(&mut self, field: &'a [u8], reader: &mut Reader<'a>) -> Result<(), EventError> {
        self.add(FieldName::Key(field));
        Ok(reader.skip()?)
    }
}
