//! Token processors: a prompt's tokens to one key for each complete block.
//!
//! The index itself speaks [`Xxh3Keys`]. The others compute what other systems call the same blocks; of vLLM's own chain it is
//! [`Sha256CborChain`](flash_indexer_wire::Sha256CborChain).

mod cbor_fnv;
mod extra;
mod vllm;
mod xxh3;
mod xxh64;

use flash_indexer_core::hashing::BlockSize;

pub use cbor_fnv::{CborFnvKeys, RootKey};
pub use extra::{Extra, extras_of};
pub use xxh3::Xxh3Keys;
pub use xxh64::Xxh64Keys;

/// A request key of the seeds' second system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestKey(pub u64);

/// Computes the keys of a chain of blocks.
pub trait TokenProcessor {
    /// What a block is called.
    type Key: Copy;
    /// Input of a block's key besides its tokens. The default is none.
    type Extra<'e>: Default;

    /// The key of a block with these tokens after `parent`, or at the start of a sequence.
    fn next(&mut self, parent: Option<Self::Key>, tokens: &[u32], extra: &Self::Extra<'_>) -> Self::Key;

    /// The keys of every complete block of `tokens` after `parent`; a partial last block has none. Blocks beyond the
    /// end of `extras` have nothing but their tokens.
    fn keys<'e>(
        &mut self,
        parent: Option<Self::Key>,
        tokens: &[u32],
        block_size: BlockSize,
        extras: &[Self::Extra<'e>],
    ) -> Vec<Self::Key> {
        let nothing = Self::Extra::<'e>::default();
        let mut parent = parent;
        let mut keys = Vec::with_capacity(tokens.len() / block_size.token_count());
        for (at, block) in tokens.chunks_exact(block_size.token_count()).enumerate() {
            let key = self.next(parent, block, extras.get(at).unwrap_or(&nothing));
            keys.push(key);
            parent = Some(key);
        }
        keys
    }
}
