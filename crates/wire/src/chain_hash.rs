//! vLLM's own block hashes, computed by its algorithm `sha256_cbor`.

use flash_indexer_core::SequenceHash;
use sha2::{Digest, Sha256};

use crate::cbor;

/// A block's full hash, as the engine stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EngineBlockHash(pub [u8; 32]);

impl EngineBlockHash {
    /// The sequence hash that events carry: the last eight bytes.
    #[must_use]
    pub fn sequence_hash(&self) -> SequenceHash {
        let tail = self.0.last_chunk::<8>().expect("32 bytes have a last 8");
        SequenceHash(u64::from_be_bytes(*tail))
    }
}

/// The hash chain `D_i = SHA-256(CBOR [D_{i-1}, tokens, keys])`, started from the engine's hash seed. The third
/// element is null if there are no keys.
///
/// Engines with equal seeds (`PYTHONHASHSEED`) compute equal hashes for equal prefixes.
#[derive(Debug, Clone)]
pub struct Sha256CborChain {
    start: EngineBlockHash,
    encoded: Vec<u8>,
}

impl Sha256CborChain {
    /// The chain of an engine started with this hash seed.
    #[must_use]
    pub fn new(hash_seed: &str) -> Self {
        let mut encoded = Vec::new();
        cbor::text(&mut encoded, hash_seed);
        Self::from_start(EngineBlockHash(Sha256::digest(&encoded).into()))
    }

    /// The chain of an engine that starts from this hash: without a seed, engines draw a random start.
    #[must_use]
    pub const fn from_start(start: EngineBlockHash) -> Self {
        Self { start, encoded: Vec::new() }
    }

    /// The hash of a block with these tokens after `parent`, or at the start of a sequence.
    pub fn next(&mut self, parent: Option<&EngineBlockHash>, tokens: &[u32]) -> EngineBlockHash {
        self.next_with(parent, tokens, &[cbor::NULL])
    }

    /// The hash of a block with extra inputs besides its tokens: a list in CBOR, or null.
    pub fn next_with(&mut self, parent: Option<&EngineBlockHash>, tokens: &[u32], keys: &[u8]) -> EngineBlockHash {
        let out = &mut self.encoded;
        out.clear();
        cbor::array(out, 3);
        cbor::bytes(out, &parent.unwrap_or(&self.start).0);
        cbor::tokens(out, tokens);
        out.extend_from_slice(keys);
        EngineBlockHash(Sha256::digest(&self.encoded).into())
    }
}
