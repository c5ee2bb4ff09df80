//! Hashes of blocks without tokens, derived from the hash ids of a trace.

use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{LocalHash, SequenceHash};

use super::{FleetOptions, HashSeeds};
use crate::random::mix;

impl FleetOptions {
    /// Local hashes of a prompt's blocks, independent of their position, as in a real prompt.
    pub(super) fn locals(&self, hash_ids: &[u64]) -> Vec<LocalHash> {
        let (content_seed, blocks) = (mix(self.seed), self.blocks_per_hash_id as u64);
        let parts = hash_ids.iter().map(|&id| mix(content_seed.wrapping_add(mix(!id))));
        let local = |part: u64, block: u64| LocalHash(mix(part.wrapping_add(block.wrapping_mul(ODD))));
        parts.flat_map(|part| (0..blocks).map(move |block| local(part, block))).collect()
    }

    /// Sequence hashes of `worker` for a sequence of blocks.
    ///
    /// Shared hashes follow the contract of [`sequence_hashes`]: some indexes recompute sequence hashes from local ones.
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
