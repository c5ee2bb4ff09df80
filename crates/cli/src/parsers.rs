//! Parsers of option values.

use std::error::Error;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::str::FromStr;

use bytesize::ByteSize;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use flash_indexer_server::QUEUE_BYTES_MIN;

/// Parses one of these names, which the help lists. `named` returns the value of a name.
pub(crate) fn one_of<T: Clone + Send + Sync + 'static>(
    names: impl IntoIterator<Item = &'static str>,
    named: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).map(move |name| named(&name).expect("only these names are possible"))
}

/// Parses a number that is at least 1, as `NonZeroUsize` is.
pub(crate) fn at_least_one<T: FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "give a whole number of at least 1")
}

/// The cause of a command-line error in the words of the standard library, and in plain words; none for other causes.
pub(crate) fn plain_cause(error: &clap::Error) -> Option<(String, &'static str)> {
    let cause = error.source()?;
    let plain = match cause.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) => "the number is out of range",
        Some(IntErrorKind::Zero) => "give a whole number of at least 1",
        Some(_) => "give a whole number",
        None => cause.downcast_ref::<ParseFloatError>().map(|_| "give a number")?,
    };
    Some((cause.to_string(), plain))
}

/// Parses a number of bytes, at least one: `1000000`, `64MiB`, `2GB`, `512 KiB`.
///
/// Fractions are rejected. So are sizes that do not fit into 64 bits: `bytesize` parses them as the largest size.
pub(crate) fn byte_size(text: &str) -> Result<usize, &'static str> {
    let size = text.parse::<ByteSize>().ok().filter(|_| !text.contains('.')).map(|size| size.0);
    let bytes = size.filter(|&bytes| bytes > 0 && bytes < u64::MAX).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or("expected a size such as 512MiB, 2GB or 1000000 (bytes)")
}

/// Parses the byte budget of received messages.
pub(crate) fn queue_bytes(text: &str) -> Result<usize, String> {
    match byte_size(text)? {
        bytes if bytes < QUEUE_BYTES_MIN => Err(format!("give at least {}MiB", QUEUE_BYTES_MIN >> 20)),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes_as_people_write_them() {
        for (text, bytes) in [("1", 1), ("2kb", 2_000), ("3 KiB", 3_072), ("64MiB", 64 << 20), ("2GB", 2_000_000_000)] {
            assert_eq!(byte_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "MiB", "-1", "1.5GiB", "3 parsecs", "99999999999999999999", "9999999999TiB"] {
            assert!(byte_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_byte_budget_holds_some_messages_of_the_largest_size() {
        assert_eq!(queue_bytes("64MiB"), Ok(64 << 20));
        assert_eq!(queue_bytes("63MiB"), Err("give at least 64MiB".to_owned()));
        assert!(queue_bytes("some").is_err());
    }
}
