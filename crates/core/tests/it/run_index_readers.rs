//! Readers of the run index concurrent with its writer: every depth in an answer was true at some moment of the call.
//!
//! The stream of changes is known beforehand, and with it the correct depths after each block of each event. The
//! writer publishes its progress before and after every event. A reader records the progress before and after its
//! query, and looks up its answer among the depths that were correct in between.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::run::{RunIndex, RunMatches};
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, PerTier, PrefixIndex, RemovedCopies, SequenceHash, SharedIndex, Tier,
    WorkerId, WorkerRank,
};

const WORKERS: u64 = 8;
const EVENTS: usize = 800;
const ROUNDS: usize = 100;

/// A small pseudo-random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Prompts that share prefixes of several lengths, longer and shorter than a run.
fn prompts() -> Vec<Vec<LocalHash>> {
    let lengths = [3, 7, 12, 20, 20, 33, 40];
    let leaves_at = [0, 3, 5, 5, 11, 12, 20];
    let prompt = |(own, (&blocks, &leaves_at)): (usize, (&usize, &usize))| {
        let content = |at: usize| if at < leaves_at { at as u64 } else { 100 * (own as u64 + 1) + at as u64 };
        (0..blocks).map(|at| LocalHash(content(at))).collect()
    };
    lengths.iter().zip(&leaves_at).enumerate().map(prompt).collect()
}

fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) }
}

/// Half of the engines have a private hash seed.
fn sequences(worker: u64, locals: &[LocalHash]) -> Vec<SequenceHash> {
    let seed = if worker.is_multiple_of(2) { 0 } else { worker << 40 };
    sequence_hashes(locals).map(|sequence| SequenceHash(sequence.0 ^ seed)).collect()
}

/// Stores, evictions from the end and from the middle, other tiers, restarts.
fn events(prompts: &[Vec<LocalHash>], seed: u64) -> Vec<(WorkerRank, BlockEvent)> {
    let mut random = Random(seed);
    let mut event = || {
        let worker = random.below(WORKERS);
        let locals = &prompts[random.below(prompts.len() as u64) as usize];
        let sequences = sequences(worker, locals);
        let from = match random.below(3) {
            0 => random.below(locals.len() as u64) as usize,
            _ => 0,
        };
        let tier = if random.below(8) == 0 { Tier::Host } else { Tier::Device };
        let event = match random.below(20) {
            0 => BlockEvent::Cleared,
            1..=9 => BlockEvent::Stored {
                tier,
                parent: from.checked_sub(1).map(|at| sequences[at]),
                blocks: (from..locals.len()).map(|at| Block { sequence: sequences[at], local: locals[at] }).collect(),
                copies: 1,
            },
            10..=17 => BlockEvent::Removed {
                tier,
                blocks: sequences[random.below(sequences.len() as u64) as usize..].iter().rev().copied().collect(),
                copies: RemovedCopies::All,
            },
            _ => BlockEvent::Removed { tier, blocks: vec![sequences[from]], copies: RemovedCopies::All },
        };
        (rank(worker), event)
    };
    (0..EVENTS).map(|_| event()).collect()
}

/// The event split into single blocks: readers may see the blocks of one event appear one after the other.
fn block_by_block(event: &BlockEvent) -> Vec<BlockEvent> {
    match event {
        BlockEvent::Stored { tier, parent, blocks, copies } => {
            let parents = std::iter::once(*parent).chain(blocks.iter().map(|block| Some(block.sequence)));
            let single = |(parent, block): (_, &Block)| BlockEvent::Stored {
                tier: *tier,
                parent,
                blocks: vec![*block],
                copies: *copies,
            };
            parents.zip(blocks).map(single).collect()
        }
        BlockEvent::Removed { tier, blocks, copies } => {
            let single = |&block| BlockEvent::Removed { tier: *tier, blocks: vec![block], copies: *copies };
            blocks.iter().map(single).collect()
        }
        other => vec![other.clone()],
    }
}

type Depths = Vec<PerTier<u32>>;

fn depths(index: &dyn PrefixIndex, query: &[LocalHash]) -> Depths {
    let scores = index.find(query);
    (0..WORKERS).map(|worker| scores.get(rank(worker)).map(|found| found.blocks).unwrap_or_default()).collect()
}

/// Correct depths between the start and the end of an event.
struct CorrectDepths {
    /// By query and worker.
    depths: Vec<Vec<BTreeSet<[u32; 4]>>>,
    /// The event affects more than its own blocks: a clear, or the indexing of waiting blocks. Those change one by
    /// one as well.
    gradual: bool,
}

fn correct(events: &[(WorkerRank, BlockEvent)], prompts: &[Vec<LocalHash>]) -> Vec<CorrectDepths> {
    let mut oracle = Oracle::default();
    let index = RunIndex::default();
    let mut all = Vec::new();
    for (rank, event) in events {
        let mut seen: Vec<Vec<BTreeSet<[u32; 4]>>> = vec![vec![BTreeSet::new(); WORKERS as usize]; prompts.len()];
        let mut note = |oracle: &Oracle| {
            for (seen, query) in seen.iter_mut().zip(prompts) {
                for (seen, depth) in seen.iter_mut().zip(depths(oracle, query)) {
                    seen.insert(depth.0);
                }
            }
        };
        note(&oracle);
        for single in block_by_block(event) {
            oracle.apply(*rank, &single);
            note(&oracle);
        }
        let waiting = index.size(*rank).waiting;
        index.apply(*rank, event);
        let gradual = *event == BlockEvent::Cleared || index.size(*rank).waiting < waiting;
        all.push(CorrectDepths { depths: seen, gradual });
    }
    all
}

/// The levels of tiers are checked separately.
fn is_explained(found: PerTier<u32>, correct: &[&CorrectDepths], query: usize, worker: usize) -> bool {
    (0..4).all(|level| {
        correct.iter().any(|correct_depths| {
            let depths = correct_depths.depths[query][worker].iter().map(|depths| depths[level]);
            let (least, most) = (depths.clone().min(), depths.clone().max());
            let between = || least <= Some(found.0[level]) && Some(found.0[level]) <= most;
            depths.clone().any(|depth| depth == found.0[level]) || (correct_depths.gradual && between())
        })
    })
}

#[test]
fn every_depth_was_true_at_some_moment_of_the_call() {
    let prompts = prompts();
    let events = events(&prompts, 7);
    let correct = correct(&events, &prompts);
    let index = RunIndex::default();
    // Numbers of the last event that was started and of the last that was finished, over all rounds.
    let (begun, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let done = AtomicBool::new(false);
    let queries = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut queries, mut overlapping) = (0_u64, 0_u64);
            while !done.load(Ordering::Acquire) {
                let query = queries as usize % prompts.len();
                let first = finished.load(Ordering::SeqCst);
                let scores = index.find(&prompts[query]);
                let last = begun.load(Ordering::SeqCst);
                // The observed range spans rounds, and between rounds any depth may be correct.
                if first > 0 && last - first < EVENTS / 2 {
                    let during: Vec<usize> = (first..=last).map(|number| (number - 1) % EVENTS).collect();
                    let then: Vec<&CorrectDepths> = during.iter().map(|&at| &correct[at]).collect();
                    for worker in 0..WORKERS {
                        let found = scores.get(rank(worker)).map(|found| found.blocks).unwrap_or_default();
                        let worker = worker as usize;
                        assert!(
                            is_explained(found, &then, query, worker),
                            "worker {worker}, query {query}: {found:?} was not true during {during:?}: {:?}",
                            then.iter().map(|correct_depths| &correct_depths.depths[query][worker]).collect::<Vec<_>>()
                        );
                    }
                    overlapping += u64::from(last > first);
                }
                queries += 1;
            }
            (queries, overlapping)
        });
        for round in 0..ROUNDS {
            for (at, (rank, event)) in events.iter().enumerate() {
                let number = 2 * round * EVENTS + at + 1;
                begun.store(number, Ordering::SeqCst);
                index.apply(*rank, event);
                finished.store(number, Ordering::SeqCst);
            }
            if round + 1 < ROUNDS {
                begun.store((2 * round + 2) * EVENTS, Ordering::SeqCst);
                finished.store(0, Ordering::SeqCst);
                (0..WORKERS).for_each(|worker| index.clear_rank(rank(worker)));
            }
        }
        done.store(true, Ordering::Release);
        reader.join().expect("the reader found nothing wrong")
    });
    assert!(queries.1 > 0, "no query ran beside an event: {queries:?}");
    let mut oracle = Oracle::default();
    for (rank, event) in &events {
        oracle.apply(*rank, event);
    }
    for query in &prompts {
        assert_eq!(index.find(query).sorted(), oracle.find(query).sorted());
    }
}

#[test]
fn find_top_equals_the_deepest_of_the_complete_answer() {
    let prompts = prompts();
    let index = RunIndex::default();
    let mut matches = RunMatches::default();
    for (rank, event) in events(&prompts, 11) {
        index.apply(rank, &event);
        let holders = index.holders();
        for query in &prompts {
            let whole = index.find(query);
            for level in [Tier::Device, Tier::External] {
                for count in [1, 3, 100] {
                    index.find_top(query, count, level, &mut matches);
                    assert_eq!(matches.holders_version(), holders.version);
                    let mut expected: Vec<u32> =
                        whole.ranks.iter().map(|found| found.blocks[level]).filter(|&blocks| blocks > 0).collect();
                    expected.sort_unstable_by_key(|&blocks| std::cmp::Reverse(blocks));
                    expected.truncate(count);
                    assert_eq!(matches.top().map(|(_, depth)| depth).collect::<Vec<_>>(), expected);
                    for (holder, depth) in matches.top() {
                        let holder = holders.holders[holder].expect("a holder with a match is in use");
                        assert!((holder.fastest..=holder.slowest).contains(&level));
                        assert_eq!(whole.get(holder.rank).expect("it is in the complete answer").blocks[level], depth);
                    }
                }
            }
        }
    }
}
