//! Layout of the keys in the store.
//!
//! ```text
//!  {fi:12}:BBBBBBBB    entries of one block: 9 bytes each, an epoch id and the slowest tier
//!  {fi:12}.lives       epoch id → rank, session, whether the rank is written completely; session → no rank, session
//!  {fi:12}.sessions    session → number of its last batch, valid until
//!  {fi:12}.incomplete  rank whose epoch ended and that is not written again → until when this counts
//!  {fi:list}.alive, .publishers, .descriptions, .states, .version    directory of ranks
//! ```
//!
//! `12` is the bucket. All prefixes with the same first block are in one bucket, so a query needs a single node of a
//! cluster.

use std::str::FromStr;

use flash_indexer_core::{LocalHash, SequenceHash};

use crate::identity::Scope;

/// First part of every key. It separates fleets that share one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace(String);

/// The text is not a valid namespace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid key namespace {0:?}; expected 1 to 64 letters, digits, '-', '_', '.' or ':'")]
pub struct NamespaceError(String);

const NAMESPACE_BYTES_MAX: usize = 64;

impl FromStr for Namespace {
    type Err = NamespaceError;

    fn from_str(name: &str) -> Result<Self, NamespaceError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        match (1..=NAMESPACE_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain) {
            true => Ok(Self(name.to_owned())),
            false => Err(NamespaceError(name.to_owned())),
        }
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("fi".to_owned())
    }
}

/// Partition of the keys; a bucket is on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Bucket(pub(crate) u16);

/// Names of the keys and their distribution over buckets.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    namespace: Namespace,
    buckets: u16,
}

impl Keys {
    pub(crate) fn new(namespace: Namespace, buckets: u16) -> Self {
        Self { namespace, buckets: buckets.max(1) }
    }

    pub(crate) fn buckets(&self) -> impl Iterator<Item = Bucket> + use<> {
        (0..self.buckets).map(Bucket)
    }

    /// The bucket of all prefixes that begin with this block.
    pub(crate) fn bucket_of(&self, scope: Scope, first: LocalHash) -> Bucket {
        // Local hashes may come from clients and need not be uniform.
        let mixed = (first.0 ^ scope.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        Bucket(((mixed * u64::from(self.buckets)) >> 32) as u16)
    }

    /// First part of the block keys of a bucket.
    pub(crate) fn blocks(&self, bucket: Bucket) -> String {
        format!("{{{}:{}}}:", self.namespace.0, bucket.0)
    }

    /// Last part of a block's key.
    pub(crate) fn block(scope: Scope, prefix: SequenceHash) -> [u8; 8] {
        (prefix.0 ^ scope.0).to_be_bytes()
    }

    /// The tables of epochs, of sessions and of incomplete ranks of a bucket. The first is named `lives`, as in earlier releases,
    /// because replicas of different releases share a store.
    pub(crate) fn bucket_tables(&self, bucket: Bucket) -> [String; 3] {
        ["lives", "sessions", "incomplete"].map(|table| format!("{{{}:{}}}.{table}", self.namespace.0, bucket.0))
    }

    /// The tables of the directory.
    pub(crate) fn list(&self) -> [String; 5] {
        ["alive", "publishers", "descriptions", "states", "version"]
            .map(|table| format!("{{{}:list}}.{table}", self.namespace.0))
    }
}
