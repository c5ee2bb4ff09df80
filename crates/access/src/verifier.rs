//! Verification of bearer tokens.

use std::sync::Arc;

use crate::grant::{AccessError, Grant};
use crate::jwt::JwtVerifier;
use crate::jwt_error::JwtError;
use crate::tokens::TokenFile;

/// The bearer tokens that a service accepts: those of a token file, and the JWTs of an issuer.
///
/// Consistency: a token is verified with one version of the token file and one of the issuer's keys.
#[derive(Debug)]
pub struct BearerVerifier {
    tokens: Option<Arc<TokenFile>>,
    jwt: Option<JwtVerifier>,
}

impl BearerVerifier {
    /// A verifier of tokens of either kind; none if there is neither.
    #[must_use]
    pub fn new(tokens: Option<Arc<TokenFile>>, jwt: Option<JwtVerifier>) -> Option<Self> {
        (tokens.is_some() || jwt.is_some()).then_some(Self { tokens, jwt })
    }

    /// The grant of a token. The token file is searched first.
    ///
    /// # Errors
    ///
    /// Fails if the file does not have the token, and it is not an acceptable JWT. A token that is not a JWT is unknown if there is a file.
    pub fn grant(&self, token: &str) -> Result<Arc<Grant>, AccessError> {
        if let Some(Ok(grant)) = self.tokens.as_ref().map(|tokens| tokens.grant(token)) {
            return Ok(grant);
        }
        let Some(jwt) = &self.jwt else { return Err(AccessError::UnknownToken) };
        jwt.grant(token).map_err(|error| match error {
            JwtError::Malformed if self.tokens.is_some() => AccessError::UnknownToken,
            error => error.into(),
        })
    }
}
