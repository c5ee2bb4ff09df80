//! Options that count something of which there must be one.

use std::str::FromStr;

/// Reads a number that is at least 1, as `NonZeroUsize` is.
pub(crate) fn at_least_one<T: FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "give a whole number of at least 1")
}
