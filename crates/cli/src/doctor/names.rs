//! Whether an engine's names of blocks follow from their tokens by the recipe that is known.

use std::collections::HashMap;

use flash_indexer_core::{DpRank, SequenceHash};
use flash_indexer_wire::{BlockStored, EngineBlockHash, Sha256CborChain, TokenIds};

/// Names that are recomputed of one stream; more would say nothing new.
const CHECKED_MAX: u64 = 4_096;

/// What became of recomputed names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NamesSeen {
    /// Equal to what the engine said.
    pub(super) equal: u64,
    /// Different at the start of a sequence: another recipe or another seed.
    pub(super) foreign: u64,
    /// Different after a block whose name was equal: the tokens are not what was hashed.
    pub(super) broken: u64,
}

/// Recomputes names by vLLM's `sha256_cbor`.
#[derive(Debug)]
pub(super) struct NameCheck {
    chain: Sha256CborChain,
    /// Full hashes of the blocks whose names were equal; as many as are checked at most.
    known: HashMap<(DpRank, SequenceHash), EngineBlockHash>,
    pub(super) seen: NamesSeen,
}

impl NameCheck {
    pub(super) fn new(hash_seed: &str) -> Self {
        Self { chain: Sha256CborChain::new(hash_seed), known: HashMap::new(), seen: NamesSeen::default() }
    }

    /// Recomputes what is covered by the recipe: blocks without adapter, salt or items, after a known parent.
    pub(super) fn stored(&mut self, dp_rank: DpRank, event: &BlockStored<'_>) {
        let NamesSeen { equal, foreign, broken } = self.seen;
        let (block_size, TokenIds::Plain(tokens)) = (event.block_size as usize, &event.token_ids) else { return };
        let is_whole = block_size > 0 && tokens.len() == event.block_hashes.len() * block_size;
        if equal + foreign + broken >= CHECKED_MAX || !is_whole || tokens.is_empty() || !is_plain(event) {
            return;
        }
        let mut parent = match event.parent_block_hash {
            None => None,
            Some(name) => match self.known.get(&(dp_rank, name)) {
                None => return,
                known => known.copied(),
            },
        };
        for (&name, tokens) in event.block_hashes.iter().zip(tokens.chunks_exact(block_size)) {
            let hash = self.chain.next(parent.as_ref(), tokens);
            match (hash.sequence_hash() == name, parent) {
                (true, _) => self.seen.equal += 1,
                (false, None) => self.seen.foreign += 1,
                (false, Some(_)) => self.seen.broken += 1,
            }
            if hash.sequence_hash() != name {
                return;
            }
            self.known.insert((dp_rank, name), hash);
            parent = Some(hash);
        }
    }
}

fn is_plain(event: &BlockStored<'_>) -> bool {
    let has_keys = event.extra_keys.as_ref().is_some_and(|keys| keys.iter().any(Option::is_some));
    !has_keys && event.lora_id.is_none() && event.lora_name.is_none() && event.cache_salt.is_none()
}
