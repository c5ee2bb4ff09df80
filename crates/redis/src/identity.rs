//! Identities in the store: scopes, ranks and replicas.

use std::fmt;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Scope of an index: a model of a tenant with a block size. Blocks of different scopes have different keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(pub(crate) u64);

impl Scope {
    /// The scope named by these parts.
    #[must_use]
    pub fn of(parts: &[&str]) -> Self {
        Self(hash_of(parts))
    }
}

/// Id of a rank of an instance in the store. Every replica computes the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HolderId(pub(crate) u64);

impl HolderId {
    /// The id of the rank named by these parts within a scope.
    #[must_use]
    pub fn of(scope: Scope, parts: &[&str]) -> Self {
        Self(xxh3_64(&[scope.0.to_be_bytes(), hash_of(parts).to_be_bytes()].concat()))
    }

    /// The id as a number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Id of a replica's process, from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublisherId(pub(crate) u64);

impl PublisherId {
    /// The id with this number.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for PublisherId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A rank of an instance, as it is described in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The rank's id.
    pub id: HolderId,
    /// The rank's scope.
    pub scope: Scope,
    /// Description for other replicas, opaque to the store. Seldom changes.
    pub description: Vec<u8>,
}

fn hash_of(parts: &[&str]) -> u64 {
    let mut hash = Xxh3::new();
    for part in parts {
        // The length separates the parts: two different lists never yield the same bytes.
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.digest()
}
