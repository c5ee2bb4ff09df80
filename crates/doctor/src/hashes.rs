//! Recomputation of an engine's block hashes from tokens, by vLLM's `sha256_cbor`.

use std::collections::HashMap;

use flash_indexer_core::{DpRank, SequenceHash};
use flash_indexer_wire::{BlockStored, EngineBlockHash, Sha256CborChain, TokenIds};

/// Maximum number of recomputed hashes of one stream; more would find no further fault.
const CHECKED_MAX: u64 = 4_096;

/// Results of the recomputation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HashCounts {
    /// Hashes equal to the engine's.
    pub(super) equal: u64,
    /// Hashes that differ at the start of a sequence: the engine uses another algorithm or seed.
    pub(super) unrelated: u64,
    /// Hashes that differ after a block whose hash is equal: the engine hashed other tokens.
    pub(super) broken: u64,
}

/// Recomputes hashes by vLLM's `sha256_cbor`.
#[derive(Debug)]
pub(super) struct HashCheck {
    chain: Sha256CborChain,
    /// Full hashes of the blocks whose hash is equal; at most [`CHECKED_MAX`].
    verified: HashMap<(DpRank, SequenceHash), EngineBlockHash>,
    pub(super) counts: HashCounts,
}

impl HashCheck {
    pub(super) fn new(hash_seed: &str) -> Self {
        Self { chain: Sha256CborChain::new(hash_seed), verified: HashMap::new(), counts: HashCounts::default() }
    }

    /// Recomputes the hashes of blocks without adapter, salt or multimodal items, after a verified parent.
    pub(super) fn stored(&mut self, dp_rank: DpRank, event: &BlockStored<'_>) {
        let HashCounts { equal, unrelated, broken } = self.counts;
        let (block_size, TokenIds::Plain(tokens)) = (event.block_size as usize, &event.token_ids) else { return };
        let is_whole = block_size > 0 && tokens.len() == event.block_hashes.len() * block_size;
        if equal + unrelated + broken >= CHECKED_MAX || !is_whole || tokens.is_empty() || !is_plain(event) {
            return;
        }
        let mut parent = match event.parent_block_hash {
            None => None,
            Some(hash) => match self.verified.get(&(dp_rank, hash)) {
                None => return,
                parent => parent.copied(),
            },
        };
        for (&published, tokens) in event.block_hashes.iter().zip(tokens.chunks_exact(block_size)) {
            let hash = self.chain.next(parent.as_ref(), tokens);
            match (hash.sequence_hash() == published, parent) {
                (true, _) => self.counts.equal += 1,
                (false, None) => self.counts.unrelated += 1,
                (false, Some(_)) => self.counts.broken += 1,
            }
            if hash.sequence_hash() != published {
                return;
            }
            self.verified.insert((dp_rank, published), hash);
            parent = Some(hash);
        }
    }
}

fn is_plain(event: &BlockStored<'_>) -> bool {
    let has_keys = event.extra_keys.as_ref().is_some_and(|keys| keys.iter().any(Option::is_some));
    !has_keys && event.lora_id.is_none() && event.lora_name.is_none() && event.cache_salt.is_none()
}
