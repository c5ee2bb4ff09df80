//! vLLM's own block hashes, by the recipe that it calls `sha256_cbor`.

use flash_indexer_core::SequenceHash;
use sha2::{Digest, Sha256};

use crate::cbor;

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

/// Something besides tokens that goes into a block's hash. Which of them do, and in which order, is up to the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashedKey<'a> {
    /// A bare text: how older releases put in adapters' names and salts.
    Text(&'a str),
    /// A multimodal item as older releases put it in.
    BareItem {
        /// Its identity.
        id: &'a str,
        /// Where it starts relative to the block, in tokens; negative when before it.
        offset: i64,
    },
    /// An adapter.
    Lora {
        /// Its name.
        name: &'a str,
        /// Where the engine loaded it from.
        path: &'a str,
    },
    /// A multimodal item.
    Item {
        /// Its identity.
        id: &'a str,
        /// Where it starts relative to the block, in tokens; negative when before it.
        offset: i64,
    },
    /// A cache salt: in the first block of a sequence only.
    Salt(&'a str),
}

impl HashedKey<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        let tagged = |out: &mut Vec<u8>, items, tag| {
            cbor::array(out, items);
            cbor::text(out, tag);
        };
        match *self {
            Self::Text(text) => cbor::text(out, text),
            Self::BareItem { id, offset } => {
                cbor::array(out, 2);
                cbor::text(out, id);
                cbor::integer(out, offset);
            }
            Self::Lora { name, path } => {
                tagged(out, 3, "lora");
                cbor::text(out, name);
                cbor::text(out, path);
            }
            Self::Item { id, offset } => {
                tagged(out, 3, "mm");
                cbor::text(out, id);
                cbor::integer(out, offset);
            }
            Self::Salt(salt) => {
                tagged(out, 2, "cache_salt");
                cbor::text(out, salt);
            }
        }
    }
}

/// The chain `D_i = SHA-256(CBOR [D_{i-1}, tokens, keys])`, started from the engine's hash seed. Without keys the third
/// element is null.
///
/// Engines with equal seeds (`PYTHONHASHSEED`) name equal prefixes alike.
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

    /// The chain of an engine that starts from this hash: without a seed, engines draw one by lot.
    #[must_use]
    pub const fn from_start(start: EngineBlockHash) -> Self {
        Self { start, encoded: Vec::new() }
    }

    /// The hash of a block with these tokens after `parent`, or at the start of a sequence.
    pub fn next(&mut self, parent: Option<&EngineBlockHash>, tokens: &[u32]) -> EngineBlockHash {
        self.next_with(parent, tokens, &[])
    }

    /// The same of a block that more than its tokens went into.
    pub fn next_with(
        &mut self,
        parent: Option<&EngineBlockHash>,
        tokens: &[u32],
        keys: &[HashedKey<'_>],
    ) -> EngineBlockHash {
        let out = &mut self.encoded;
        out.clear();
        cbor::array(out, 3);
        cbor::bytes(out, &parent.unwrap_or(&self.start).0);
        cbor::tokens(out, tokens);
        match keys {
            [] => cbor::null(out),
            keys => {
                cbor::array(out, keys.len());
                keys.iter().for_each(|key| key.encode(out));
            }
        }
        EngineBlockHash(Sha256::digest(&self.encoded).into())
    }
}
