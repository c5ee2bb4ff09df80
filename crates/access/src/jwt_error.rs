//! Reasons why a JWT is refused, and the limits among them.

use jsonwebtoken::errors::{Error, ErrorKind};

/// Longest JWT, in bytes.
pub const JWT_BYTES_MAX: usize = 8 << 10;

/// Tolerated difference between the issuer's clock and this one, in seconds.
pub const JWT_LEEWAY_S: u64 = 60;

/// Reason why a JWT is refused. No message has the token or its signature.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// The token is too long.
    #[error("the JWT exceeds {JWT_BYTES_MAX} bytes; have the issuer leave claims out")]
    TooLarge,
    /// The token does not have three parts in base64url, or they are not JSON.
    #[error("the bearer token is not a valid JWT; send it exactly as issued")]
    Malformed,
    /// The token requires an extension.
    #[error("the JWT's header has `crit`, and its extensions are not supported; have the issuer leave it out")]
    Critical,
    /// The algorithm is not allowed, or is not that of the key.
    #[error(
        "algorithm {algorithm:?} of the JWT is not allowed; have the issuer sign with one of --jwt-algorithms, and with that of \
         the key"
    )]
    Algorithm {
        /// The algorithm of the token.
        algorithm: String,
    },
    /// The token does not name its key.
    #[error("the JWT's header has no key id; have the issuer add `kid`")]
    NoKeyId,
    /// No key has the id of the token's key.
    #[error("unknown key id {id:?}; request a new token, or add the issuer's key to the file of --jwt-keys")]
    UnknownKey {
        /// The id.
        id: String,
    },
    /// The signature is not one of the key.
    #[error("the JWT's signature is invalid; send the token as the issuer has made it")]
    Signature,
    /// The token has expired.
    #[error("token expired; request a new one from the issuer")]
    Expired,
    /// The token is not valid yet.
    #[error("the JWT is not valid for more than {JWT_LEEWAY_S} s yet; compare the clocks of issuer and service")]
    NotYetValid,
    /// The token is one of another issuer.
    #[error("the JWT's issuer is not that of --jwt-issuer; request a token from that one")]
    Issuer,
    /// The token is for another audience.
    #[error("the JWT's audience is not that of --jwt-audience; request a token for that one")]
    Audience,
    /// The token lacks a claim, or has a value of another type.
    #[error("the JWT has no valid claim `{claim}`; have the issuer add it")]
    Claim {
        /// Name of the claim.
        claim: String,
    },
}

impl JwtError {
    /// Name of the reason in metrics.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Expired => "jwt_expired",
            Self::UnknownKey { .. } => "jwt_unknown_key",
            Self::Signature => "jwt_signature",
            Self::NotYetValid | Self::Issuer | Self::Audience | Self::Claim { .. } => "jwt_claims",
            Self::TooLarge | Self::Malformed | Self::Critical | Self::Algorithm { .. } | Self::NoKeyId => "jwt_form",
        }
    }
}

impl From<Error> for JwtError {
    fn from(error: Error) -> Self {
        match error.into_kind() {
            ErrorKind::InvalidSignature => Self::Signature,
            ErrorKind::ExpiredSignature => Self::Expired,
            ErrorKind::ImmatureSignature => Self::NotYetValid,
            ErrorKind::InvalidIssuer => Self::Issuer,
            ErrorKind::InvalidAudience => Self::Audience,
            ErrorKind::MissingRequiredClaim(claim) | ErrorKind::InvalidClaimFormat(claim) => Self::Claim { claim },
            _ => Self::Malformed,
        }
    }
}
