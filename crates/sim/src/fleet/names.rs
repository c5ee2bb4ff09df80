//! Hashes of blocks that have no tokens.

use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{LocalHash, SequenceHash};

use super::{FleetOptions, HashSeeds};
use crate::random::mix;

/// Names blocks by the hash ids of a trace. One multiplication chain a block, where tokens would have to be
/// made up and hashed.
#[derive(Debug)]
pub(super) struct Names {
    blocks_per_hash_id: u64,
    content_seed: u64,
    hash_seeds: HashSeeds,
}

impl Names {
    pub(super) fn new(options: &FleetOptions) -> Self {
        Self {
            blocks_per_hash_id: options.blocks_per_hash_id as u64,
            content_seed: mix(options.seed),
            hash_seeds: options.hash_seeds,
        }
    }

    /// What a prompt's blocks contain. As in a real prompt, content says nothing of its place.
    pub(super) fn locals(&self, hash_ids: &[u64]) -> Vec<LocalHash> {
        let parts = hash_ids.iter().map(|&id| mix(self.content_seed.wrapping_add(mix(!id))));
        let local = |part: u64, block: u64| LocalHash(mix(part.wrapping_add(block.wrapping_mul(ODD))));
        parts.flat_map(|part| (0..self.blocks_per_hash_id).map(move |block| local(part, block))).collect()
    }

    /// How `worker` names a sequence of blocks with this content.
    ///
    /// Shared names follow the contract of [`sequence_hashes`]: some indexes need names that they can
    /// compute from content, and nobody is harmed by it.
    pub(super) fn sequence(&self, worker: usize, locals: &[LocalHash]) -> Vec<SequenceHash> {
        let shared = sequence_hashes(locals);
        match self.hash_seeds {
            HashSeeds::Shared => shared.collect(),
            HashSeeds::Private => {
                let seed = mix(worker as u64 + 1);
                shared.map(|hash| SequenceHash(mix(hash.0 ^ seed))).collect()
            }
        }
    }
}

/// An odd number with its bits well spread.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
