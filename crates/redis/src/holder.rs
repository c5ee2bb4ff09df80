//! Who holds blocks, as the store knows it.

use std::fmt;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// What has an index of its own: a model for a tenant with a block size. Blocks of different scopes have different keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(u64);

impl Scope {
    /// The scope that these parts name.
    #[must_use]
    pub fn of(parts: &[&str]) -> Self {
        Self(hash_of(parts))
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Name of a rank of an engine instance in the store: every replica computes the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HolderId(pub(crate) u64);

impl HolderId {
    /// The holder that these parts name inside a scope.
    #[must_use]
    pub fn of(scope: Scope, parts: &[&str]) -> Self {
        Self(xxh3_64(&[scope.0.to_be_bytes(), hash_of(parts).to_be_bytes()].concat()))
    }

    /// The name as a number.
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

/// A replica, from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublisherId(pub(crate) u64);

impl PublisherId {
    /// The publisher of this number.
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

/// A rank of an engine instance, described for whoever finds it in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub id: HolderId,
    /// Where its blocks belong.
    pub scope: Scope,
    /// What replicas tell each other about it; the store does not look into it. Seldom changes.
    pub description: Vec<u8>,
}

fn hash_of(parts: &[&str]) -> u64 {
    let mut hash = Xxh3::new();
    for part in parts {
        // With its length, so that no two lists of parts are the same bytes.
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.digest()
}
