//! vLLM's own block hashes, by the recipe that it calls `sha256_cbor`.

use flash_indexer_core::SequenceHash;
use sha2::{Digest, Sha256};

/// A block's full hash as the engine keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EngineBlockHash(pub [u8; 32]);

impl EngineBlockHash {
    /// What events carry: the last eight bytes.
    #[must_use]
    pub fn sequence_hash(&self) -> SequenceHash {
        let tail = self.0.last_chunk::<8>().expect("32 bytes have a last 8");
        SequenceHash(u64::from_be_bytes(*tail))
    }
}

/// The chain `D_i = SHA-256(CBOR [D_{i-1}, tokens, null])`, started from the engine's hash seed.
///
/// Engines with equal seeds (`PYTHONHASHSEED`) name equal prefixes alike. Blocks with adapters,
/// salts or multimodal items are not covered: their third element is not null.
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
        head(&mut encoded, TEXT, hash_seed.len() as u64);
        encoded.extend_from_slice(hash_seed.as_bytes());
        Self { start: EngineBlockHash(Sha256::digest(&encoded).into()), encoded }
    }

    /// The hash of a block with these tokens after `parent`, or at the start of a sequence.
    pub fn next(&mut self, parent: Option<&EngineBlockHash>, tokens: &[u32]) -> EngineBlockHash {
        self.encoded.clear();
        let parent = parent.unwrap_or(&self.start);
        head(&mut self.encoded, ARRAY, 3);
        head(&mut self.encoded, BYTES, parent.0.len() as u64);
        self.encoded.extend_from_slice(&parent.0);
        head(&mut self.encoded, ARRAY, tokens.len() as u64);
        for &token in tokens {
            head(&mut self.encoded, UNSIGNED, token.into());
        }
        self.encoded.push(NULL);
        EngineBlockHash(Sha256::digest(&self.encoded).into())
    }
}

const UNSIGNED: u8 = 0 << 5;
const BYTES: u8 = 2 << 5;
const TEXT: u8 = 3 << 5;
const ARRAY: u8 = 4 << 5;
const NULL: u8 = 0xf6;

/// A CBOR head in its shortest, canonical form.
fn head(out: &mut Vec<u8>, major: u8, value: u64) {
    if value < 24 {
        out.push(major | value as u8);
    } else if let Ok(value) = u8::try_from(value) {
        out.extend([major | 24, value]);
    } else if let Ok(value) = u16::try_from(value) {
        out.push(major | 25);
        out.extend(value.to_be_bytes());
    } else if let Ok(value) = u32::try_from(value) {
        out.push(major | 26);
        out.extend(value.to_be_bytes());
    } else {
        out.push(major | 27);
        out.extend(value.to_be_bytes());
    }
}
