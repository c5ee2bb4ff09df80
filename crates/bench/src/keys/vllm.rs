//! vLLM's own block hashes.

use flash_indexer_wire::{EngineBlockHash, Sha256CborChain, cbor};

use super::TokenProcessor;

impl TokenProcessor for Sha256CborChain {
    type Key = EngineBlockHash;

    fn next(&mut self, parent: Option<EngineBlockHash>, tokens: &[u32]) -> EngineBlockHash {
        self.next_with(parent.as_ref(), tokens, &[cbor::NULL])
    }
}
