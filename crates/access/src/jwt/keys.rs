//! The key set (JWKS, RFC 7517) of an issuer.

use std::collections::BTreeMap;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{DecodingKey, DecodingKeyKind};
use serde::Deserialize;
use serde_json::Value;

use super::JwtAlgorithm;
use super::crypto::without_zeros;
use crate::config_file::{ConfigFile, FileContent};

/// Limit of the keys in a set.
pub const JWT_KEYS_MAX: usize = 256;

/// The issuer's keys of a file on disk.
pub type JwtKeyFile = ConfigFile<JwtKeys>;

/// Keys of an issuer, by their ids.
///
/// Only keys that can verify an allowed signature are used: RSA of 2,048 to 8,192 bits, P-256 and Ed25519, with an id. Keys for encryption
/// or for another algorithm, and secrets (`oct`), are ignored.
#[derive(Debug, Clone)]
pub struct JwtKeys(BTreeMap<String, JwtKey>);

#[derive(Debug, Clone)]
pub(super) struct JwtKey {
    pub(super) algorithm: JwtAlgorithm,
    pub(super) key: DecodingKey,
    jwk: Jwk,
}

#[derive(Deserialize)]
struct File {
    keys: Vec<Value>,
}

/// Invalid key set.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum JwtKeysError {
    #[error("invalid key set: {0}; write the JSON of the issuer's `jwks_uri`")]
    Format(#[from] serde_json::Error),
    #[error("the set has {count} keys; at most {JWT_KEYS_MAX} are allowed: remove former ones")]
    TooMany { count: usize },
    #[error("the set has no key that verifies RS256, ES256 or EdDSA and has a `kid`: add one")]
    Empty,
    #[error(
        "key {id:?}: invalid numbers of an RSA key of 2048 to 8192 bits, a P-256 key or an Ed25519 key: copy it again"
    )]
    Key { id: String },
    #[error("two keys have the `kid` {id:?}: give each its own")]
    Repeated { id: String },
}

impl FileContent for JwtKeys {
    const NAME: &'static str = "key set of JWTs";
    const REMEDY: &'static str = "write the issuer's key set there, or make it readable";
    type Error = JwtKeysError;

    fn parse(text: &str) -> Result<Self, JwtKeysError> {
        let File { keys: listed } = serde_json::from_str(text)?;
        if listed.len() > JWT_KEYS_MAX {
            return Err(JwtKeysError::TooMany { count: listed.len() });
        }
        let mut keys = BTreeMap::new();
        // A key of a type that the library does not support is for another purpose.
        for jwk in listed.into_iter().filter_map(|jwk| Jwk::deserialize(jwk).ok()) {
            let (Some(algorithm), Some(id)) = (usable_algorithm(&jwk), jwk.common.key_id.clone()) else { continue };
            let key = DecodingKey::from_jwk(&jwk).ok().filter(is_complete);
            let Some(key) = key else { return Err(JwtKeysError::Key { id }) };
            if keys.insert(id.clone(), JwtKey { algorithm, key, jwk }).is_some() {
                return Err(JwtKeysError::Repeated { id });
            }
        }
        if keys.is_empty() { Err(JwtKeysError::Empty) } else { Ok(Self(keys)) }
    }
}

impl PartialEq for JwtKeys {
    fn eq(&self, other: &Self) -> bool {
        self.0.values().map(|key| &key.jwk).eq(other.0.values().map(|key| &key.jwk))
    }
}

impl JwtKeys {
    /// Number of keys.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, id: &str) -> Option<&JwtKey> {
        self.0.get(id)
    }
}

impl JwtKeyFile {
    /// Number of keys.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.content().count()
    }
}

/// The algorithm that a key verifies; none if it is not a signing key of an allowed type.
fn usable_algorithm(jwk: &Jwk) -> Option<JwtAlgorithm> {
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => JwtAlgorithm::Rs256,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => JwtAlgorithm::Es256,
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => JwtAlgorithm::EdDsa,
        _ => return None,
    };
    let common = &jwk.common;
    let signs = common.public_key_use.as_ref().is_none_or(|it| *it == PublicKeyUse::Signature);
    let verifies = common.key_operations.as_ref().is_none_or(|they| they.contains(&KeyOperations::Verify));
    let is_of = common.key_algorithm.is_none_or(|it| it == algorithm.algorithm().into());
    (signs && verifies && is_of).then_some(algorithm)
}

/// Whether the numbers of a key have the lengths of its type.
fn is_complete(key: &DecodingKey) -> bool {
    const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1_024;
    const P256_POINT_BYTES: usize = 65;
    const ED25519_BYTES: usize = 32;
    match key.kind() {
        DecodingKeyKind::RsaModulusExponent { n, e } => {
            RSA_BYTES.contains(&without_zeros(n).len()) && !without_zeros(e).is_empty()
        }
        DecodingKeyKind::SecretOrDer(bytes) => match key.family() {
            jsonwebtoken::AlgorithmFamily::Ec => bytes.len() == P256_POINT_BYTES,
            jsonwebtoken::AlgorithmFamily::Ed => bytes.len() == ED25519_BYTES,
            _ => false,
        },
    }
}
