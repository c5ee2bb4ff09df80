//! `kv-index`: runs with coverage bitsets, read without locks.

use flash_indexer_bench::{Backend, Contender, Finder, Lane, MatchTotals, Setup, WorkerEvent};
use flash_indexer_core::{BlockEvent, LocalHash};
use kv_index::{ChainBlockMap, ContentHash, SequenceHash, ShardedChainIndex, StoredBlock};
use parking_lot::Mutex;

use super::{CHAIN_INDEX, worker, workers};

/// `ShardedChainIndex`: one shard for up to 1,024 workers, the maximum of a shard; its lanes are the threads that apply
/// events. Queries use `score_into`, which does not allocate.
pub(crate) struct ChainIndexPeer;

/// Workers that a shard supports.
const SHARD_WORKERS_MAX: usize = 1_024;

impl Contender for ChainIndexPeer {
    fn name(&self) -> &str {
        CHAIN_INDEX
    }

    fn build(&self, setup: Setup) -> Box<dyn Backend> {
        let shards = setup.workers.div_ceil(SHARD_WORKERS_MAX);
        let index = ShardedChainIndex::new(shards, setup.workers.div_ceil(shards));
        let intern = |number: usize| index.intern_worker(&number.to_string()).expect("there is a slot for each worker");
        let workers = (0..setup.workers).map(|number| {
            let id = intern(number);
            Mutex::new(Worker { id, map: ChainBlockMap::default() })
        });
        Box::new(Chain { workers: workers.collect(), index })
    }
}

struct Chain {
    index: ShardedChainIndex,
    workers: Vec<Mutex<Worker>>,
}

/// State of a worker, owned by the lane that applies its events.
struct Worker {
    id: u32,
    map: ChainBlockMap,
}

enum Change {
    Stored { parent: Option<SequenceHash>, blocks: Vec<StoredBlock> },
    Removed(Vec<SequenceHash>),
    Cleared,
}

struct ChainLane<'a> {
    chain: &'a Chain,
    /// The workers of this lane, at their numbers.
    maps: Vec<Option<Worker>>,
    changes: Vec<(usize, Change)>,
    next: usize,
}

impl Backend for Chain {
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a> {
        let mut maps: Vec<Option<Worker>> = (0..self.workers.len()).map(|_| None).collect();
        for number in workers(&events) {
            let mut worker = self.workers[number].lock();
            maps[number] = Some(Worker { id: worker.id, map: std::mem::take(&mut worker.map) });
        }
        let changes = events.iter().map(|event| (worker(event), change(&event.event)));
        Box::new(ChainLane { chain: self, maps, changes: changes.collect(), next: 0 })
    }

    fn finder(&self) -> Box<dyn Finder + '_> {
        Box::new(ChainFinder { index: &self.index, query: Vec::new(), answer: Vec::new() })
    }
}

fn change(event: &BlockEvent) -> Change {
    match event {
        BlockEvent::Stored { parent, blocks, .. } => Change::Stored {
            parent: parent.map(|parent| SequenceHash(parent.0)),
            blocks: blocks
                .iter()
                .map(|block| StoredBlock {
                    seq_hash: SequenceHash(block.sequence.0),
                    content_hash: ContentHash(block.local.0),
                })
                .collect(),
        },
        BlockEvent::Removed { blocks, .. } => {
            Change::Removed(blocks.iter().map(|block| SequenceHash(block.0)).collect())
        }
        BlockEvent::Cleared => Change::Cleared,
        BlockEvent::Copied { .. } => unreachable!("a fleet has one tier"),
    }
}

impl Lane for ChainLane<'_> {
    fn apply(&mut self, events: usize) {
        for (number, change) in &self.changes[self.next..self.next + events] {
            let Worker { id, map } = self.maps[*number].as_mut().expect("the lane took its workers");
            match change {
                Change::Stored { parent, blocks } => {
                    // A rejected store is visible in the answers.
                    let _ = self.chain.index.apply_stored(*id, blocks, *parent, map);
                }
                Change::Removed(blocks) => self.chain.index.apply_removed(*id, blocks, map),
                Change::Cleared => self.chain.index.apply_cleared(*id, map),
            }
        }
        self.next += events;
    }
}

impl Drop for ChainLane<'_> {
    fn drop(&mut self) {
        for (worker, taken) in self.chain.workers.iter().zip(&mut self.maps) {
            if let Some(taken) = taken.take() {
                *worker.lock() = taken;
            }
        }
    }
}

struct ChainFinder<'a> {
    index: &'a ShardedChainIndex,
    query: Vec<ContentHash>,
    answer: Vec<(u32, u32)>,
}

impl Finder for ChainFinder<'_> {
    fn load(&mut self, query: &[LocalHash]) {
        self.query.clear();
        self.query.extend(query.iter().map(|local| ContentHash(local.0)));
    }

    fn find(&mut self) {
        self.answer.clear();
        let answer = &mut self.answer;
        self.index.score_into(&self.query, |content| content.0, false, |worker, depth| answer.push((worker, depth)));
    }

    /// Selects the deepest while depths are reported, which is less work than selecting from a full answer.
    fn find_top(&mut self, count: usize) {
        self.answer.clear();
        let answer = &mut self.answer;
        let mut least = 0;
        let report = |worker, depth| {
            if answer.len() < count {
                answer.push((worker, depth));
            } else if depth > least {
                let shallowest = answer.iter_mut().min_by_key(|entry| entry.1).expect("the answer is full");
                *shallowest = (worker, depth);
            } else {
                return;
            }
            if answer.len() == count {
                least = answer.iter().map(|entry| entry.1).min().unwrap_or(u32::MAX);
            }
        };
        self.index.score_into(&self.query, |content| content.0, false, report);
    }

    fn totals(&self) -> MatchTotals {
        MatchTotals::of(self.answer.iter().map(|entry| entry.1))
    }
}
