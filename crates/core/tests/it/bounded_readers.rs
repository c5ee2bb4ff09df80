//! Readers of a bounded index while its writer evicts: every answer is at most one that was true at some moment of the call.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::run::{INDEX_BYTES_MIN, RunIndex, RunLimits, RunMatches};
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, RemovedCopies, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank,
};

const WORKERS: u64 = 6;
const EVENTS: usize = 1_200;
const READERS: usize = 2;
/// Prompts that readers query; many more are stored.
const QUERIED: u64 = 6;

fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) }
}

/// Prompts of several lengths; every third one continues where another one branches off.
fn prompt(number: u64) -> Vec<LocalHash> {
    let blocks = 60 + number % 7 * 50;
    let content = |at: u64| if number.is_multiple_of(3) && at < 40 { at } else { (number + 1) << 20 | at };
    (0..blocks).map(|at| LocalHash(content(at))).collect()
}

fn sequences(worker: u64, locals: &[LocalHash]) -> Vec<SequenceHash> {
    let seed = if worker.is_multiple_of(2) { 0 } else { worker << 40 };
    sequence_hashes(locals).map(|sequence| SequenceHash(sequence.0 ^ seed)).collect()
}

fn events() -> Vec<(WorkerRank, BlockEvent)> {
    let mut random = 7_u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    let mut event = || {
        let worker = below(WORKERS);
        let number = if below(3) == 0 { below(QUERIED) } else { QUERIED + below(400) };
        let locals = prompt(number);
        let sequences = sequences(worker, &locals);
        let blocks = || sequences.iter().zip(&locals).map(|(&sequence, &local)| Block { sequence, local }).collect();
        let event = match below(10) {
            0 => BlockEvent::Removed {
                tier: Tier::Device,
                blocks: sequences[below(sequences.len() as u64) as usize..].iter().rev().copied().collect(),
                copies: RemovedCopies::All,
            },
            _ => BlockEvent::Stored { tier: Tier::Device, parent: None, blocks: blocks(), copies: 1 },
        };
        (rank(worker), event)
    };
    (0..EVENTS).map(|_| event()).collect()
}

/// For each number of applied events, each queried prompt and each worker: the number of leading blocks held. A
/// sequence hash identifies one prefix here, so this is the number of the prompt's leading sequence hashes that the
/// worker holds.
fn correct_depths(events: &[(WorkerRank, BlockEvent)]) -> Vec<Vec<Vec<u32>>> {
    let sequences: Vec<Vec<Vec<SequenceHash>>> =
        (0..QUERIED).map(|number| (0..WORKERS).map(|worker| sequences(worker, &prompt(number))).collect()).collect();
    let mut held: Vec<BTreeSet<SequenceHash>> = vec![BTreeSet::new(); WORKERS as usize];
    let mut now = vec![vec![0; WORKERS as usize]; QUERIED as usize];
    let mut correct_depths = vec![now.clone()];
    for (rank, event) in events {
        let worker = rank.worker.0 as usize;
        match event {
            BlockEvent::Stored { blocks, .. } => held[worker].extend(blocks.iter().map(|block| block.sequence)),
            BlockEvent::Removed { blocks, .. } => {
                for sequence in blocks {
                    held[worker].remove(sequence);
                }
            }
            BlockEvent::Copied { .. } | BlockEvent::Cleared => unreachable!("no such event is made"),
        }
        for (now, sequences) in now.iter_mut().zip(&sequences) {
            now[worker] =
                sequences[worker].iter().take_while(|sequence| held[worker].contains(sequence)).count() as u32;
        }
        correct_depths.push(now.clone());
    }
    correct_depths
}

#[test]
fn no_answer_exceeds_what_was_true_during_the_call() {
    let events = events();
    let correct_depths = correct_depths(&events);
    let index = RunIndex::bounded(RunLimits::default(), INDEX_BYTES_MIN).expect("enough for an index");
    let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let is_over = AtomicBool::new(false);
    let matched = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let (index, correct_depths, begun, done, is_over) = (&index, &correct_depths, &begun, &done, &is_over);
                scope.spawn(move || {
                    let mut matches = RunMatches::default();
                    let mut matched = 0_u64;
                    let mut turn = reader as u64;
                    while !is_over.load(Ordering::Acquire) {
                        turn += 1;
                        let number = turn % QUERIED;
                        let before = done.load(Ordering::Acquire);
                        let found = index.find(&prompt(number));
                        let after = begun.load(Ordering::Acquire);
                        for found in &found.ranks {
                            let of = |moment: &Vec<Vec<u32>>| moment[number as usize][found.rank.worker.0 as usize];
                            let most = correct_depths[before..=after].iter().map(of).max().unwrap_or(0);
                            assert!(found.longest() <= most, "{found:?} of prompt {number}, {before} to {after}");
                            matched += 1;
                        }
                        index.find_top(&prompt(number), 2, Tier::Device, &mut matches);
                    }
                    matched
                })
            })
            .collect();
        for (number, (rank, event)) in events.iter().enumerate() {
            begun.store(number + 1, Ordering::Release);
            index.apply(*rank, event);
            done.store(number + 1, Ordering::Release);
        }
        is_over.store(true, Ordering::Release);
        readers.into_iter().map(|reader| reader.join().expect("no answer was too high")).sum::<u64>()
    });
    let bound = index.memory_limit().expect("the index is bounded");
    assert!(bound.evicted_blocks > 10_000 && bound.bytes_highest <= bound.bytes_max, "{bound:?}");
    assert!(matched > 0, "at least one query matched");
}
