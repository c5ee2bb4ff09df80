//! The contract of this system: local hashes, chained.

use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::{HashVariant, LocalHasher, MultimodalItem, next_sequence_hash};

use super::TokenProcessor;

/// Our own sequence hashes of the content of one adapter and salt: what
/// [`local_hashes`](flash_indexer_core::hashing::local_hashes) and
/// [`sequence_hashes`](flash_indexer_core::hashing::sequence_hashes) give together.
#[derive(Debug, Default)]
pub struct Xxh3Keys {
    space: HashVariant,
    hasher: LocalHasher,
}

impl Xxh3Keys {
    /// The processor for content in this space.
    #[must_use]
    pub fn new(space: HashVariant) -> Self {
        Self { space, hasher: LocalHasher::default() }
    }
}

impl TokenProcessor for Xxh3Keys {
    type Key = SequenceHash;
    /// Multimodal items in the block.
    type Extra<'e> = Vec<MultimodalItem>;

    fn next(&mut self, parent: Option<SequenceHash>, tokens: &[u32], items: &Vec<MultimodalItem>) -> SequenceHash {
        next_sequence_hash(parent, self.hasher.multimodal(self.space, tokens, items))
    }
}
