//! Token processors: a prompt's tokens to one key for each complete block.
//!
//! This project's index uses [`Xxh3Keys`]. The other processors compute the keys of other systems for the same blocks of text;
//! vLLM's own chain is [`Sha256CborChain`](flash_indexer_wire::Sha256CborChain).

mod cbor_fnv;
mod vllm;
mod xxh3;
mod xxh64;

use flash_indexer_core::hashing::BlockSize;

pub use cbor_fnv::CborFnvKeys;
pub use xxh3::Xxh3Keys;
pub use xxh64::Xxh64Keys;

/// A block key of llm-d's indexer: a 64-bit chain hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestKey(pub u64);

/// Computes the keys of a chain of blocks.
pub trait TokenProcessor {
    /// Key of a block.
    type Key: Copy;

    /// The key of a block with these tokens after `parent`, or at the start of a sequence.
    fn next(&mut self, parent: Option<Self::Key>, tokens: &[u32]) -> Self::Key;

    /// The keys of every complete block of `tokens` after `parent`; a partial last block has none.
    fn keys(&mut self, parent: Option<Self::Key>, tokens: &[u32], block_size: BlockSize) -> Vec<Self::Key> {
        let mut parent = parent;
        let blocks = tokens.chunks_exact(block_size.token_count());
        blocks.map(|block| *parent.insert(self.next(parent, block))).collect()
    }
}
