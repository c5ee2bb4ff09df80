//! Bearer token of a client.

use std::str::FromStr;

use ureq::http::HeaderValue;

/// Bearer token, as the value of a header. `Debug` does not print it.
#[derive(Debug, Clone)]
pub struct BearerToken(pub(crate) HeaderValue);

/// Text that cannot be a bearer token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is empty or has a character that a header cannot have; write the token alone")]
pub struct BearerTokenError;

impl FromStr for BearerToken {
    type Err = BearerTokenError;

    fn from_str(text: &str) -> Result<Self, BearerTokenError> {
        let token = text.trim();
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| BearerTokenError)?;
        value.set_sensitive(true);
        if token.is_empty() { Err(BearerTokenError) } else { Ok(Self(value)) }
    }
}
