//! `cbor-fnv`: FNV-1a over canonical CBOR, block after block.

use flash_indexer_wire::cbor::{self, Sink};

use super::{RequestKey, TokenProcessor};

/// `K_i = FNV-1a-64(CBOR [K_{i-1}, tokens, null])`, started from a root key of the hash seed and the model.
///
/// The CBOR encoding is not stored: each byte goes straight into the hash. The cost is FNV's, about four cycles a byte.
#[derive(Debug, Clone)]
pub struct CborFnvKeys {
    root: RequestKey,
}

impl CborFnvKeys {
    /// A processor for a hash seed, as the engines' `PYTHONHASHSEED`, and a model or the adapter that replaces it.
    #[must_use]
    pub fn new(hash_seed: &str, model: &str) -> Self {
        let (mut seed, mut root) = (EMPTY, EMPTY);
        seed.put(hash_seed.as_bytes());
        cbor::array(&mut root, 3);
        cbor::unsigned(&mut root, seed.0);
        cbor::null(&mut root);
        cbor::text(&mut root, model);
        Self { root: RequestKey(root.0) }
    }
}

impl TokenProcessor for CborFnvKeys {
    type Key = RequestKey;

    fn next(&mut self, parent: Option<RequestKey>, tokens: &[u32]) -> RequestKey {
        let mut hash = EMPTY;
        cbor::array(&mut hash, 3);
        cbor::unsigned(&mut hash, parent.unwrap_or(self.root).0);
        cbor::tokens(&mut hash, tokens);
        cbor::null(&mut hash);
        RequestKey(hash.0)
    }
}

/// FNV-1a with 64 bits.
struct Fnv1a(u64);

/// The hash of no bytes.
const EMPTY: Fnv1a = Fnv1a(0xcbf2_9ce4_8422_2325);

impl Sink for Fnv1a {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
