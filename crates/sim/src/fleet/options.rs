//! Options of a fleet.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// Size and policies of a fleet. Equal options and prompts give equal events.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FleetOptions {
    /// Workers, at least one.
    pub workers: usize,
    /// Blocks of each worker's cache. A cache larger than the trace never evicts.
    pub blocks: usize,
    /// Blocks that one hash id of the trace stands for: 512 divided by the tokens in a block.
    pub blocks_per_hash_id: usize,
    /// Routing policy of prompts.
    pub routing: Routing,
    /// Hash seeds of the workers.
    pub hash_seeds: HashSeeds,
    /// Share of stored blocks that are removed from the middle of their sequence.
    pub holes: HoleShare,
    /// Seed of all hashes and of the choice of holes.
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

/// Routing policy of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Routing {
    /// Each worker in turn.
    RoundRobin,
    /// The worker with the longest match; among equal ones the one that has served the fewest requests.
    PrefixAffinity,
    /// The worker with the longest match of at least half of the prompt; without one, the worker that has served the
    /// fewest requests. The requests of a session stay with one worker.
    SessionAffinity,
}

/// Hash seeds of the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HashSeeds {
    /// Equal prefixes have equal sequence hashes on every worker.
    Shared,
    /// Each worker has its own seed, so no two workers share a sequence hash.
    Private,
}

/// The share of stored blocks that are removed from the middle of their sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoleShare {
    /// The share times 2^32.
    threshold: u32,
}

impl HoleShare {
    /// No block is removed.
    pub const NONE: Self = Self { threshold: 0 };

    /// A share in percent; none unless it is a number from 0 to 99.
    #[must_use]
    pub fn percent(percent: f64) -> Option<Self> {
        (0.0..=99.0).contains(&percent).then(|| Self { threshold: (percent / 100.0 * 2f64.powi(32)) as u32 })
    }

    /// Draws whether the next block is removed.
    pub(super) fn samples(self, random: &mut Random) -> bool {
        self.threshold > 0 && ((random.next() >> 32) as u32) < self.threshold
    }
}
