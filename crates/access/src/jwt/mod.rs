//! JSON web tokens (RFC 7519) of one issuer: their verification, and the grants that their claims give.

mod claims;
mod crypto;
mod keys;

use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use flash_indexer_types::names::shortened;
use jsonwebtoken::{Algorithm, Validation, decode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

pub use self::claims::{ClaimName, ClaimNameError};
pub use self::keys::{JWT_KEYS_MAX, JwtKeyFile, JwtKeys, JwtKeysError};
use crate::grant::{Grant, GrantOrigin};
use crate::jwt_error::{JWT_BYTES_MAX, JWT_LEEWAY_S, JwtError};

flash_indexer_types::named_enum! {
    /// Signature algorithm of a JWT, by its name in the header of a token. Algorithms with a shared secret (`HS256` and others) and `none`
    /// do not exist here, so no token can choose them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum JwtAlgorithm {
        /// RSA with PKCS #1 v1.5 padding and SHA-256, for keys of 2,048 to 8,192 bits.
        Rs256 = "RS256",
        /// ECDSA on P-256 with SHA-256.
        Es256 = "ES256",
        /// Ed25519.
        EdDsa = "EdDSA",
    }
}

impl JwtAlgorithm {
    const fn algorithm(self) -> Algorithm {
        match self {
            Self::Rs256 => Algorithm::RS256,
            Self::Es256 => Algorithm::ES256,
            Self::EdDsa => Algorithm::EdDSA,
        }
    }
}

/// Name of an algorithm that is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("algorithm {0:?} is not supported; give RS256, ES256 or EdDSA")]
pub struct JwtAlgorithmError(String);

impl FromStr for JwtAlgorithm {
    type Err = JwtAlgorithmError;

    fn from_str(name: &str) -> Result<Self, JwtAlgorithmError> {
        Self::named(name).ok_or_else(|| JwtAlgorithmError(shortened(name).into_owned()))
    }
}

/// Required claims of a token, and the claims that become its grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtOptions {
    /// Value of the claim `iss`.
    pub issuer: String,
    /// Value of the claim `aud`, or one of its values.
    pub audience: String,
    /// Allowed algorithms.
    pub algorithms: Vec<JwtAlgorithm>,
    /// Claim with the scopes: a text with spaces between them, or a list. Other values in it have no effect.
    pub scopes_claim: ClaimName,
    /// Claim with the tenants: a text or a list; `*` permits all, and a token without the claim none. Without a name, every
    /// token permits all tenants.
    pub tenants_claim: Option<ClaimName>,
}

/// Verifier of an issuer's tokens.
///
/// Consistency: a token is verified with one version of the key file. Cost: at most [`JWT_BYTES_MAX`] bytes are decoded, with
/// one signature check; nothing is kept of a token.
#[derive(Debug)]
pub struct JwtVerifier {
    keys: Arc<JwtKeyFile>,
    options: JwtOptions,
    /// By [`JwtAlgorithm`].
    validations: [Validation; JwtAlgorithm::ALL.len()],
}

/// The fields of a token's header that choose the key.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a verifier must support (RFC 7515, 4.1.11). None is supported here.
    crit: Option<IgnoredAny>,
}

impl Header {
    /// The header of a token; none if it is not a JWT.
    fn of(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let (header, ..) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(header).ok()?).ok()
    }
}

impl JwtVerifier {
    /// A verifier with the keys of a file.
    #[must_use]
    pub fn new(keys: Arc<JwtKeyFile>, options: JwtOptions) -> Self {
        crypto::install();
        let validations = JwtAlgorithm::ALL.map(|algorithm| {
            let mut validation = Validation::new(algorithm.algorithm());
            validation.leeway = JWT_LEEWAY_S;
            validation.validate_nbf = true;
            validation.set_issuer(&[&options.issuer]);
            validation.set_audience(&[&options.audience]);
            validation.set_required_spec_claims(&["exp", "iss", "aud"]);
            validation
        });
        Self { keys, options, validations }
    }

    /// Verifies a token, and returns its grant.
    ///
    /// # Errors
    ///
    /// Fails if the token is not one of the issuer for this audience, or at this time.
    pub fn grant(&self, token: &str) -> Result<Arc<Grant>, JwtError> {
        if token.len() > JWT_BYTES_MAX {
            return Err(JwtError::TooLarge);
        }
        let Header { alg, kid, crit } = Header::of(token).ok_or(JwtError::Malformed)?;
        if crit.is_some() {
            return Err(JwtError::Critical);
        }
        let refused = || JwtError::Algorithm { algorithm: shortened(&alg).into_owned() };
        let algorithm = JwtAlgorithm::named(&alg).filter(|algorithm| self.options.algorithms.contains(algorithm));
        let algorithm = algorithm.ok_or_else(refused)?;
        let key_id = kid.ok_or(JwtError::NoKeyId)?;
        let keys = self.keys.content();
        let key = keys.get(&key_id).ok_or_else(|| JwtError::UnknownKey { id: shortened(&key_id).into_owned() })?;
        if key.algorithm != algorithm {
            return Err(refused());
        }
        let claims: Value = decode(token, &key.key, &self.validations[algorithm as usize])?.claims;
        Ok(Arc::new(self.options.grant(&claims)))
    }
}

impl JwtOptions {
    fn grant(&self, claims: &Value) -> Grant {
        let name = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
        let scopes = claims::scopes(self.scopes_claim.value(claims));
        let tenants = self.tenants_claim.as_ref().and_then(|name| claims::tenants(name.value(claims)));
        Grant { name: shortened(name).into_owned(), scopes, tenants, origin: GrantOrigin::Jwt }
    }
}
