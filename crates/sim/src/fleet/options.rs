//! What a fleet is made with.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// Shape of a fleet and of what happens to it. The same options and prompts give the same events.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FleetOptions {
    /// Workers, at least one.
    pub workers: usize,
    /// Blocks of each worker's cache. Nothing is ever evicted from a cache that is larger than the trace.
    pub blocks: usize,
    /// Blocks that one hash id of the trace stands for: 512 divided by the tokens in a block.
    pub blocks_per_hash_id: usize,
    /// Who serves a prompt.
    pub routing: Routing,
    /// How workers name blocks.
    pub hash_seeds: HashSeeds,
    /// Blocks that vanish from the middle of a sequence after they were stored.
    pub holes: HoleShare,
    /// Changes every hash, and where holes are.
    pub seed: u64,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            workers: 64,
            blocks: 16_384,
            blocks_per_hash_id: 8,
            routing: Routing::RoundRobin,
            hash_seeds: HashSeeds::Shared,
            holes: HoleShare::NONE,
            seed: 1,
        }
    }
}

/// Who serves a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Routing {
    /// Each worker in turn.
    RoundRobin,
    /// The worker with the deepest match; of equal ones the one that has served the fewest requests.
    PrefixAffinity,
}

/// How workers name blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HashSeeds {
    /// Equal prefixes have equal sequence hashes on every worker.
    Shared,
    /// Each worker has a seed of its own: no sequence hash is known to two of them.
    Private,
}

/// The share of stored blocks that vanish from the middle of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoleShare {
    /// Of 2^32.
    threshold: u32,
}

impl HoleShare {
    /// No block vanishes.
    pub const NONE: Self = Self { threshold: 0 };

    /// So many of a hundred stored blocks; none if that is not a number from 0 to 99.
    #[must_use]
    pub fn percent(percent: f64) -> Option<Self> {
        (0.0..=99.0).contains(&percent).then(|| Self { threshold: (percent / 100.0 * 2f64.powi(32)) as u32 })
    }

    /// Whether the next block vanishes.
    pub(super) fn strikes(self, random: &mut Random) -> bool {
        self.threshold > 0 && ((random.next() >> 32) as u32) < self.threshold
    }
}
