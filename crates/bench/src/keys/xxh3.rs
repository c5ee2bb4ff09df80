//! This project's hashing contract: chained local hashes.

use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::{HashVariant, LocalHasher, next_sequence_hash};

use super::TokenProcessor;

/// Sequence hashes of one hash variant, the composition of
/// [`local_hashes`](flash_indexer_core::hashing::local_hashes) and
/// [`sequence_hashes`](flash_indexer_core::hashing::sequence_hashes).
#[derive(Debug, Default)]
pub struct Xxh3Keys {
    variant: HashVariant,
    hasher: LocalHasher,
}

impl Xxh3Keys {
    /// A processor for this hash variant.
    #[must_use]
    pub fn new(variant: HashVariant) -> Self {
        Self { variant, hasher: LocalHasher::default() }
    }
}

impl TokenProcessor for Xxh3Keys {
    type Key = SequenceHash;

    fn next(&mut self, parent: Option<SequenceHash>, tokens: &[u32]) -> SequenceHash {
        next_sequence_hash(parent, self.hasher.tokens(self.variant, tokens))
    }
}
