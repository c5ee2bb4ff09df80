//! The token file's format, and the search for a token.

use std::collections::BTreeSet;
use std::sync::Arc;

use flash_indexer_types::names::{NameError, NameField, check_name};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::config_file::{ConfigFile, FileContent};
use crate::grant::{AccessError, Grant, GrantOrigin, Scope};
use crate::toml_error::TomlError;

/// Limit of the tokens in a file.
pub const TOKENS_MAX: usize = 1_024;
/// Longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 512;

type TokenDigest = [u8; 32];

/// The tokens of a file on disk.
pub type TokenFile = ConfigFile<Tokens>;

/// The tokens of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    entries: Vec<(TokenDigest, Arc<Grant>)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    sha256: String,
    scopes: BTreeSet<Scope>,
    tenants: Option<BTreeSet<String>>,
}

/// Invalid token file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TokensError {
    #[error("invalid file: {0}; docs/operations.md describes its format")]
    Format(#[from] TomlError),
    #[error("the file has {count} tokens; at most {TOKENS_MAX} are allowed: remove unused ones")]
    TooMany { count: usize },
    #[error("the file has no token: add one with `flash-indexer token`")]
    Empty,
    #[error("token {name:?}: sha256 must have 64 hexadecimal digits: write the SHA-256 digest of the token")]
    Digest { name: String },
    #[error("token {name:?}: scopes must not be empty: list `query`, `events` or `admin`")]
    NoScope { name: String },
    #[error("token {name:?}: tenants must not be empty: list tenants, or leave the field out to permit all")]
    NoTenant { name: String },
    #[error("token {name:?}: a tenant must not be empty: name it, or leave tenants out to permit all")]
    EmptyTenant { name: String },
    #[error("token {name:?}: {source}")]
    Tenant { name: String, source: NameError },
    #[error("a token's {0}")]
    Name(NameError),
    #[error("a token's name is empty: write one, for logs and errors")]
    NoName,
    #[error("tokens {first:?} and {second:?} have the same sha256: give each its own token")]
    Repeated { first: String, second: String },
}

impl FileContent for Tokens {
    const NAME: &'static str = "token file";
    const REMEDY: &'static str = "create it with `flash-indexer token`, or make it readable";
    type Error = TokensError;

    fn parse(text: &str) -> Result<Self, TokensError> {
        let File { token: listed } = toml::from_str(text).map_err(|error| TomlError::of(text, &error))?;
        match listed.len() {
            0 => return Err(TokensError::Empty),
            count if count > TOKENS_MAX => return Err(TokensError::TooMany { count }),
            _ => {}
        }
        let mut entries: Vec<(TokenDigest, Arc<Grant>)> = Vec::with_capacity(listed.len());
        for entry in listed {
            let (digest, grant) = entry.checked()?;
            if let Some((_, first)) = entries.iter().find(|(other, _)| *other == digest) {
                return Err(TokensError::Repeated { first: first.name.clone(), second: grant.name });
            }
            entries.push((digest, Arc::new(grant)));
        }
        Ok(Self { entries })
    }
}

impl TokenFile {
    /// The grant of a bearer token.
    ///
    /// # Errors
    ///
    /// Fails if the file has no such token.
    pub fn grant(&self, token: &str) -> Result<Arc<Grant>, AccessError> {
        self.content().grant(token).cloned()
    }

    /// Number of tokens.
    #[must_use]
    pub fn token_count(&self) -> usize {
        self.content().entries.len()
    }
}

impl Tokens {
    /// The grant of a token. Its cost depends on the number of tokens in the file, not on the position of the equal one.
    ///
    /// # Errors
    ///
    /// Fails if no token in the file is equal.
    pub fn grant(&self, token: &str) -> Result<&Arc<Grant>, AccessError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(AccessError::UnknownToken);
        }
        let digest = digest_of(token);
        let unknown = self.entries.len() as u64;
        let found = self
            .entries
            .iter()
            .zip(0_u64..)
            .fold(unknown, |found, ((known, _), at)| u64::conditional_select(&found, &at, known.ct_eq(&digest)));
        self.entries.get(found as usize).map(|(_, grant)| grant).ok_or(AccessError::UnknownToken)
    }
}

impl Entry {
    fn checked(self) -> Result<(TokenDigest, Grant), TokensError> {
        let Self { name, sha256, scopes, tenants } = self;
        check_name(NameField::TokenName, &name).map_err(TokensError::Name)?;
        if name.trim().is_empty() {
            return Err(TokensError::NoName);
        }
        let Some(digest) = parse_hex(&sha256) else { return Err(TokensError::Digest { name }) };
        if scopes.is_empty() {
            return Err(TokensError::NoScope { name });
        }
        for tenant in tenants.iter().flatten() {
            if tenant.is_empty() {
                return Err(TokensError::EmptyTenant { name });
            }
            if let Err(source) = check_name(NameField::TenantId, tenant) {
                return Err(TokensError::Tenant { name, source });
            }
        }
        if tenants.as_ref().is_some_and(BTreeSet::is_empty) {
            return Err(TokensError::NoTenant { name });
        }
        Ok((digest, Grant { name, scopes, tenants, origin: GrantOrigin::TokenFile }))
    }
}

pub(crate) fn digest_of(token: &str) -> TokenDigest {
    Sha256::digest(token.as_bytes()).into()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_hex(text: &str) -> Option<TokenDigest> {
    let mut digest = TokenDigest::default();
    if text.len() != 2 * digest.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in digest.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(digest)
}
