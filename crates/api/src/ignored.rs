//! Fields of a body that the request's type does not have.

use serde::Deserialize;
use serde_json::{Deserializer, Error};

/// Maximum number of names that [`parse_with_ignored`] returns.
const IGNORED_MAX: usize = 8;
/// Maximum length of such a name, in characters.
const IGNORED_NAME_CHARS_MAX: usize = 64;

/// Parses a body, and also returns the first few fields that the request's type does not have.
///
/// # Errors
///
/// Fails if the body is not JSON, or does not fit.
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
