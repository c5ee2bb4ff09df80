//! A re-implementation in Rust of the default index of llm-d's KV-cache indexer, from its documentation.
//!
//! An LRU cache of block keys, whose entries are LRU caches of the pods that hold the block. A key is a chain hash over a
//! prompt's tokens that the indexer computes itself; a second cache maps engines' sequence hashes to keys. A lookup walks
//! a prompt's keys until no pod is left that holds all of them. A pod's score is its number of leading keys.

use std::num::NonZeroUsize;
use std::sync::Arc;

use flash_indexer_bench::{
    Backend, Contender, Finder, Lane, MatchTotals, Play, PredictedHits, Setup, WorkerEvent, keep_deepest,
};
use flash_indexer_core::{BlockEvent, LocalHash, WorkerRank};
use lru::LruCache;
use parking_lot::Mutex;
use rustc_hash::{FxBuildHasher, FxHashSet};

use super::{TWO_LEVEL_LRU, worker};

/// The re-implementation without eviction: it keeps all workers of a block (the original keeps ten) and more keys than the
/// traces have, so its answers equal the others'. Keys of queries are hashed before the timing; keys of events are hashed
/// when they are applied, as in the original.
pub(crate) struct TwoLevelLruPeer;

/// The original's limit of keys.
const KEYS_MAX: usize = 100_000_000;

type Cache<K, V> = LruCache<K, V, FxBuildHasher>;
type Pods = Arc<Mutex<Cache<u32, ()>>>;

impl Contender for TwoLevelLruPeer {
    fn name(&self) -> &str {
        TWO_LEVEL_LRU
    }

    fn build(&self, setup: Setup) -> Box<dyn Backend> {
        Box::new(TwoLevelLru::new(setup.workers, KEYS_MAX))
    }
}

/// Hits that it predicts with `keys_max` entries in each cache.
pub(crate) fn two_level_lru_hits(play: &Play, workers: usize, keys_max: usize) -> PredictedHits {
    let index = TwoLevelLru::new(workers, keys_max);
    let mut finder = LruFinder { index: &index, keys: Vec::new(), scores: Vec::new() };
    let ask = |finder: &mut LruFinder<'_>, query: &[LocalHash], rank: WorkerRank| {
        finder.load(query);
        finder.find();
        let of_rank = finder.scores.iter().find(|score| u64::from(score.0) == rank.worker.0);
        of_rank.map_or(0, |score| score.1)
    };
    PredictedHits::of(play, &mut finder, ask, |finder, event| finder.index.apply(event))
}

/// An empty cache, which allocates on demand.
fn cache<K: std::hash::Hash + Eq, V>(entries_max: usize) -> Cache<K, V> {
    let mut cache = LruCache::unbounded_with_hasher(FxBuildHasher);
    cache.resize(NonZeroUsize::new(entries_max).unwrap_or(NonZeroUsize::MIN));
    cache
}

struct TwoLevelLru {
    pods_max: usize,
    blocks: Mutex<Cache<u64, Pods>>,
    /// Sequence hashes to keys.
    hashes: Mutex<Cache<u64, u64>>,
    /// Sequence hashes that each worker holds, which a clear must remove. The original ignores clears.
    held: Vec<Mutex<FxHashSet<u64>>>,
}

impl TwoLevelLru {
    fn new(workers: usize, keys_max: usize) -> Self {
        let held = (0..workers).map(|_| Mutex::default()).collect();
        let (blocks, hashes) = (Mutex::new(cache(keys_max)), Mutex::new(cache(keys_max)));
        Self { pods_max: workers, blocks, hashes, held }
    }

    fn add(&self, pod: u32, hash: u64, key: u64) {
        self.hashes.lock().put(hash, key);
        let pods = Arc::clone(self.blocks.lock().get_or_insert(key, || Arc::new(Mutex::new(cache(self.pods_max)))));
        pods.lock().put(pod, ());
        self.held[pod as usize].lock().insert(hash);
    }

    fn evict(&self, pod: u32, hash: u64) {
        self.held[pod as usize].lock().remove(&hash);
        let Some(key) = self.hashes.lock().get(&hash).copied() else { return };
        let Some(pods) = self.blocks.lock().get(&key).cloned() else { return };
        let mut pods = pods.lock();
        pods.pop(&pod);
        if pods.is_empty() {
            self.blocks.lock().pop(&key);
            self.hashes.lock().pop(&hash);
        }
    }

    fn apply(&self, WorkerEvent { rank, event }: &WorkerEvent) {
        let pod = rank.worker.0 as u32;
        match event {
            BlockEvent::Stored { parent, blocks, .. } => {
                let mut key = match parent {
                    None => ROOT,
                    Some(parent) => match self.hashes.lock().get(&parent.0) {
                        Some(&key) => key,
                        None => return,
                    },
                };
                for block in blocks {
                    key = next_key(key, block.local);
                    self.add(pod, block.sequence.0, key);
                }
            }
            BlockEvent::Removed { blocks, .. } => blocks.iter().for_each(|block| self.evict(pod, block.0)),
            BlockEvent::Cleared => {
                let hashes: Vec<u64> = self.held[pod as usize].lock().iter().copied().collect();
                hashes.into_iter().for_each(|hash| self.evict(pod, hash));
            }
            BlockEvent::Copied { .. } => unreachable!("a fleet has one tier"),
        }
    }
}

impl Backend for TwoLevelLru {
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a> {
        assert!(events.iter().all(|event| worker(event) < self.pods_max), "workers are numbered from zero");
        Box::new(LruLane { index: self, events, next: 0 })
    }

    fn finder(&self) -> Box<dyn Finder + '_> {
        Box::new(LruFinder { index: self, keys: Vec::new(), scores: Vec::new() })
    }
}

struct LruLane<'a> {
    index: &'a TwoLevelLru,
    events: Vec<&'a WorkerEvent>,
    next: usize,
}

impl Lane for LruLane<'_> {
    fn apply(&mut self, events: usize) {
        self.events[self.next..self.next + events].iter().for_each(|event| self.index.apply(event));
        self.next += events;
    }
}

struct LruFinder<'a> {
    index: &'a TwoLevelLru,
    keys: Vec<u64>,
    /// Pods that hold the first block, with their number of leading blocks.
    scores: Vec<(u32, u32)>,
}

impl Finder for LruFinder<'_> {
    fn load(&mut self, query: &[LocalHash]) {
        self.keys.clear();
        let mut key = ROOT;
        self.keys.extend(query.iter().map(|&local| {
            key = next_key(key, local);
            key
        }));
    }

    fn find(&mut self) {
        self.scores.clear();
        let mut active: FxHashSet<u32> = FxHashSet::default();
        let mut depth = 0;
        for key in &self.keys {
            let Some(pods) = self.index.blocks.lock().get(key).cloned() else { break };
            let pods = pods.lock();
            if depth == 0 {
                active = pods.iter().map(|(&pod, ())| pod).collect();
            }
            let scores = &mut self.scores;
            active.retain(|&pod| {
                let continues = pods.contains(&pod);
                if !continues {
                    scores.push((pod, depth));
                }
                continues
            });
            if active.is_empty() {
                break;
            }
            depth += 1;
        }
        self.scores.extend(active.into_iter().map(|pod| (pod, depth)));
    }

    fn find_top(&mut self, count: usize) {
        self.find();
        keep_deepest(&mut self.scores, count, |score| score.1);
    }

    fn totals(&self) -> MatchTotals {
        MatchTotals::of(self.scores.iter().map(|score| score.1))
    }
}

const ROOT: u64 = 0xcbf2_9ce4_8422_2325;

/// The key of a block with local hash `local` after key `parent`. Cheaper than the original's.
fn next_key(parent: u64, local: LocalHash) -> u64 {
    let mixed = (parent.rotate_left(23) ^ local.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}
