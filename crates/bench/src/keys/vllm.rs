//! vLLM's own block hashes.

use flash_indexer_wire::{EngineBlockHash, HashedKey, Sha256CborChain};

use super::TokenProcessor;

impl TokenProcessor for Sha256CborChain {
    type Key = EngineBlockHash;
    /// Adapter, items and salt, in the order of the engine's release.
    type Extra<'e> = Vec<HashedKey<'e>>;

    fn next(&mut self, parent: Option<EngineBlockHash>, tokens: &[u32], keys: &Vec<HashedKey<'_>>) -> EngineBlockHash {
        self.next_with(parent.as_ref(), tokens, keys)
    }
}
