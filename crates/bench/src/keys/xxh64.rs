//! `xxh64`: XXH64 over the parent and the tokens of a block.

use xxhash_rust::xxh64::{Xxh64, xxh64};

use super::{RequestKey, TokenProcessor};

/// `K_i = XXH64(LE64 K_{i-1}, LE32 of each token)`, started from the hash of the seed and the model.
#[derive(Debug, Clone)]
pub struct Xxh64Keys {
    root: RequestKey,
    bytes: Vec<u8>,
}

impl Xxh64Keys {
    /// A processor for a hash seed and a model.
    #[must_use]
    pub fn new(hash_seed: &str, model: &str) -> Self {
        let mut root = Xxh64::new(0);
        root.update(&xxh64(hash_seed.as_bytes(), 0).to_le_bytes());
        root.update(&(model.len() as u64).to_le_bytes());
        root.update(model.as_bytes());
        Self { root: RequestKey(root.digest()), bytes: Vec::new() }
    }
}

impl TokenProcessor for Xxh64Keys {
    type Key = RequestKey;

    fn next(&mut self, parent: Option<RequestKey>, tokens: &[u32]) -> RequestKey {
        let bytes = &mut self.bytes;
        bytes.clear();
        bytes.extend_from_slice(&parent.unwrap_or(self.root).0.to_le_bytes());
        tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
        RequestKey(xxh64(bytes, 0))
    }
}
