//! Fields of a body that a request does not have.

use serde::Deserialize;
use serde_json::{Deserializer, Error};

/// Names that [`parse_with_ignored`] returns.
const IGNORED_MAX: usize = 8;
/// Characters of such a name.
const IGNORED_NAME_CHARS_MAX: usize = 64;

/// Parses a body, and returns the fields that no field of the request has, the first few of them.
///
/// # Errors
///
/// Fails if the body is no JSON, or does not fit.
pub fn parse_with_ignored<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<(T, Vec<String>), Error> {
    let mut ignored = Vec::new();
    let mut json = Deserializer::from_slice(body);
    let request = serde_ignored::deserialize(&mut json, |path| {
        if ignored.len() < IGNORED_MAX {
            ignored.push(path.to_string().chars().take(IGNORED_NAME_CHARS_MAX).collect());
        }
    })?;
    json.end()?;
    Ok((request, ignored))
}
