//! `cbor-fnv`: FNV-1a over canonical CBOR, block after block.

use flash_indexer_wire::cbor::{self, Sink};

use super::{Extra, RequestKey, TokenProcessor};

/// Input of the root key, the parent of a sequence's first block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootKey<'a> {
    /// Seed and model: keys of different models differ.
    SeedAndModel {
        /// The hash seed, as the engines' `PYTHONHASHSEED`.
        hash_seed: &'a str,
        /// The model, or the adapter that takes its place.
        model: &'a str,
    },
    /// The seed alone: the older scheme, for a single model.
    Seed {
        /// The hash seed.
        hash_seed: &'a str,
    },
}

/// `K_i = FNV-1a-64(CBOR [K_{i-1}, tokens, extra])`, started from a [`RootKey`].
///
/// The CBOR encoding is not stored: each byte goes straight into the hash. The cost is FNV's, about four cycles a byte.
#[derive(Debug, Clone)]
pub struct CborFnvKeys {
    root: RequestKey,
}

impl CborFnvKeys {
    /// A processor that starts from this root.
    #[must_use]
    pub fn new(root: RootKey<'_>) -> Self {
        let (RootKey::SeedAndModel { hash_seed, .. } | RootKey::Seed { hash_seed }) = root;
        let mut seed = Fnv1a::default();
        seed.put(hash_seed.as_bytes());
        let root = match root {
            RootKey::Seed { .. } => seed.0,
            RootKey::SeedAndModel { model, .. } => {
                let mut hash = Fnv1a::default();
                cbor::array(&mut hash, 3);
                cbor::unsigned(&mut hash, seed.0);
                cbor::null(&mut hash);
                cbor::text(&mut hash, model);
                hash.0
            }
        };
        Self { root: RequestKey(root) }
    }

    /// The root key, the parent of the first block.
    #[must_use]
    pub const fn root(&self) -> RequestKey {
        self.root
    }
}

impl TokenProcessor for CborFnvKeys {
    type Key = RequestKey;
    type Extra<'e> = Extra;

    fn next(&mut self, parent: Option<RequestKey>, tokens: &[u32], extra: &Extra) -> RequestKey {
        let mut hash = Fnv1a::default();
        cbor::array(&mut hash, 3);
        cbor::unsigned(&mut hash, parent.unwrap_or(self.root).0);
        cbor::tokens(&mut hash, tokens);
        extra.encode(&mut hash);
        RequestKey(hash.0)
    }
}

/// FNV-1a with 64 bits.
struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Sink for Fnv1a {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
