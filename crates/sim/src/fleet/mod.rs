//! A fleet of simulated caches without sockets, tokens or clocks, fast enough for benchmarks. For each request of a trace
//! it yields the query, the reused blocks and the cache's events.

mod hashes;
mod options;

use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, RemovedCopies, SequenceHash, Tier, WorkerId, WorkerRank,
};

pub use self::options::{FleetOptions, HashSeeds, HoleShare, Routing};
use crate::cache::{CacheChange, PrefixCache, RequestTooLarge};
use crate::random::Random;
use crate::workload::HashedPrompt;

/// Workers that serve a trace's prompts, one cache each.
///
/// Prompts are served one at a time: when a prompt ends, its blocks are in the cache, and each block of its output is in the cache after it
/// is complete. Each prompt is treated as having at least one token after its last block, so all of its blocks can be reused. A removal is
/// published when the last copy of a block is gone ([`RemovedCopies::All`]), so indexes with and without reference counts can apply the
/// same events.
#[derive(Debug)]
pub struct Fleet {
    options: FleetOptions,
    workers: Vec<Worker>,
    next_worker: usize,
    random: Random,
}

#[derive(Debug)]
struct Worker {
    cache: PrefixCache,
    /// Requests that the worker has served.
    served: u64,
}

/// The result of one request, with its events or where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetStep<E = Vec<BlockEvent>> {
    /// When it arrived, in milliseconds since the trace's start.
    pub at_ms: u64,
    /// The rank that served it.
    pub rank: WorkerRank,
    /// Local hashes of the prompt's blocks: the query that precedes the request.
    pub query: Vec<LocalHash>,
    /// Leading **blocks** that the worker reused from its cache: the right answer for `rank`.
    pub reused: usize,
    /// Changes of the worker's cache, in order.
    pub events: E,
}

impl Fleet {
    /// Workers with empty caches.
    ///
    /// # Panics
    ///
    /// With zero workers.
    #[must_use]
    pub fn new(options: FleetOptions) -> Self {
        assert!(options.workers > 0, "a fleet needs a worker");
        let worker = || Worker { cache: PrefixCache::new(options.blocks), served: 0 };
        let workers = (0..options.workers).map(|_| worker()).collect();
        Self { random: Random::new(options.seed), workers, next_worker: 0, options }
    }

    /// Serves a prompt by the worker that the routing policy chooses.
    ///
    /// # Errors
    ///
    /// When the prompt does not fit into a cache; caches are unchanged, but round-robin advances.
    pub fn serve(&mut self, prompt: HashedPrompt<'_>) -> Result<FleetStep, RequestTooLarge> {
        let mut query = self.options.locals(prompt.hash_ids);
        let chosen = self.route(&query);
        let prompt_blocks = query.len();
        query.extend(self.options.locals(prompt.output_ids));
        let hashes = self.options.sequence(chosen, &query);
        let worker = &mut self.workers[chosen];
        worker.cache.check_size(hashes.len())?;
        let reused = worker.cache.hit(&hashes[..prompt_blocks]);
        let mut changes = Vec::new();
        let mut running = worker.cache.start(&hashes, reused);
        for full in prompt_blocks..=hashes.len() {
            worker.cache.grow(&mut running, full, &mut changes);
            worker.cache.fill(&mut running, &hashes, full, &mut changes);
        }
        worker.cache.finish(running);
        worker.served += 1;
        let mut events = events(&changes, &query, &hashes);
        events.extend(self.open_holes(chosen, &hashes, reused));
        query.truncate(prompt_blocks);
        Ok(FleetStep { at_ms: prompt.at_ms, rank: rank_of(chosen), query, reused, events })
    }

    /// Chooses the worker of the next prompt.
    fn route(&mut self, query: &[LocalHash]) -> usize {
        match self.options.routing {
            Routing::RoundRobin => {
                let chosen = self.next_worker;
                self.next_worker = (chosen + 1) % self.workers.len();
                chosen
            }
            Routing::PrefixAffinity => self.route_to_longest(query, 0),
            Routing::SessionAffinity => self.route_to_longest(query, query.len() / 2),
        }
    }

    /// Chooses the worker with the longest match, if it has at least `least` blocks; among equal ones the one that
    /// has served the fewest requests.
    fn route_to_longest(&self, query: &[LocalHash], least: usize) -> usize {
        let shared = (self.options.hash_seeds == HashSeeds::Shared).then(|| self.options.sequence(0, query));
        let preference = |&worker: &usize| {
            let Worker { cache, served } = &self.workers[worker];
            let hit = match &shared {
                Some(hashes) => cache.hit(hashes),
                None => cache.hit(&self.options.sequence(worker, query)),
            };
            (if hit < least { 0 } else { hit }, std::cmp::Reverse(*served))
        };
        (0..self.workers.len()).max_by_key(preference).expect("a fleet has workers")
    }

    /// Removes some of the blocks that were just stored from the middle of their sequence.
    fn open_holes(&mut self, worker: usize, hashes: &[SequenceHash], first_stored: usize) -> Option<BlockEvent> {
        let share = self.options.holes;
        let cache = &mut self.workers[worker].cache;
        let interior = first_stored.max(1)..hashes.len().saturating_sub(1).max(1);
        let interior = hashes.get(interior).unwrap_or_default().iter().copied();
        let is_dropped = |&hash: &SequenceHash| share.samples(&mut self.random) && cache.drop_block(hash) > 0;
        let blocks: Vec<_> = interior.filter(is_dropped).collect();
        (!blocks.is_empty()).then(|| removed(blocks))
    }
}

/// The rank of worker number `worker` of a fleet. Each worker has one.
#[must_use]
pub fn rank_of(worker: usize) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker as u64), dp_rank: DpRank(0) }
}

/// Converts changes to events; consecutive removals become one event.
fn events(changes: &[CacheChange], query: &[LocalHash], hashes: &[SequenceHash]) -> Vec<BlockEvent> {
    let mut events = Vec::new();
    for change in changes {
        match *change {
            CacheChange::Removed { copies_left: 1.., .. } => {}
            CacheChange::Removed { hash, copies_left: 0 } => match events.last_mut() {
                Some(BlockEvent::Removed { blocks, .. }) => blocks.push(hash),
                _ => events.push(removed(vec![hash])),
            },
            CacheChange::Stored { first, last } => {
                let blocks = (first..last).map(|at| Block { sequence: hashes[at], local: query[at] });
                events.push(BlockEvent::Stored {
                    tier: Tier::Device,
                    parent: first.checked_sub(1).map(|parent| hashes[parent]),
                    blocks: blocks.collect(),
                    copies: 1,
                });
            }
        }
    }
    events
}

fn removed(blocks: Vec<SequenceHash>) -> BlockEvent {
    BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All }
}
