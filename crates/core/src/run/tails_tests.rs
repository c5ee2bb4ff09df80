//! Sessions whose requests leave the chain of the request before a few blocks from its end: a query visits few runs,
//! and answers equal the oracle's.

use std::collections::HashSet;

use super::{RunIndex, RunMatches};
use crate::cursor::CHECKPOINT_BLOCKS;
use crate::oracle::Oracle;
use crate::{
    Block, BlockEvent, DpRank, LocalHash, PrefixIndex, RemovedCopies, SequenceHash, SharedIndex, Tier, WorkerId,
    WorkerRank,
};

fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) }
}

/// Blocks along a path of content.
fn blocks(path: &[u64]) -> Vec<Block> {
    let mut sequence = 0_u64;
    let mut block = |&content: &u64| {
        sequence = sequence.wrapping_mul(31).wrapping_add(content + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Block { sequence: SequenceHash(sequence), local: LocalHash(content) }
    };
    path.iter().map(&mut block).collect()
}

/// The event that stores the blocks of a path from an offset on.
fn stores(path: &[u64], from: usize) -> BlockEvent {
    let blocks = blocks(path);
    let parent = from.checked_sub(1).map(|at| blocks[at].sequence);
    BlockEvent::Stored { tier: Tier::Device, parent, blocks: blocks[from..].to_vec(), copies: 1 }
}

fn query(path: &[u64]) -> Vec<LocalHash> {
    path.iter().map(|&content| LocalHash(content)).collect()
}

/// Runs that a query visits.
fn visited(index: &RunIndex, path: &[u64]) -> usize {
    let mut matches = RunMatches::default();
    index.find_depths(&query(path), &mut matches);
    matches.scratch.path.len()
}

/// A session of `turns` requests, each of which stores an output of `output` blocks that the next request leaves
/// behind. Calls `store` with each path and the number of its blocks that were stored before; returns the last prompt.
fn session(turns: u64, output: u64, mut store: impl FnMut(&[u64], usize)) -> Vec<u64> {
    let mut prompt: Vec<u64> = (0..281).collect();
    let mut stored = 0;
    for turn in 0..turns {
        store(&prompt, stored);
        for block in 1..=output {
            let mut path = prompt.clone();
            path.extend((0..block).map(|block| 1_000_000 + turn * 100 + block));
            store(&path, path.len() - 1);
        }
        stored = prompt.len();
        prompt.extend((0..11).map(|block| 10_000 + turn * 100 + block));
    }
    store(&prompt, stored);
    prompt
}

#[test]
fn a_query_of_a_long_session_visits_few_runs() {
    for output in [1, 3, 8] {
        let (index, mut oracle) = (RunIndex::default(), Oracle::default());
        let mut paths = Vec::new();
        let last = session(60, output, |path, from| {
            let event = stores(path, from);
            assert_eq!(index.apply(rank(1), &event), oracle.apply(rank(1), &event));
            paths.push(path.to_vec());
        });
        let runs = visited(&index, &last);
        assert!(runs <= 8, "{runs} runs of a session of {} blocks and 60 requests", last.len());
        for path in paths.iter().step_by(20) {
            assert_eq!(index.find(&query(path)).sorted(), oracle.find(&query(path)).sorted());
        }
        let sorted = |mut held: Vec<_>| {
            held.sort_unstable_by_key(|block: &crate::HeldBlock| block.sequence);
            held
        };
        assert_eq!(sorted(index.held(rank(1))), sorted(oracle.held(rank(1))));
        // Each checkpoint is in the table once, including those of tails that moved.
        let ends = |path: &Vec<u64>| (CHECKPOINT_BLOCKS..=path.len()).step_by(CHECKPOINT_BLOCKS);
        let checkpoints: HashSet<_> = paths.iter().flat_map(|path| ends(path).map(|end| &path[..end])).collect();
        assert_eq!(index.writer.lock().entries_of_test()[1], checkpoints.len());
        // Removing and clearing leave nothing behind.
        for path in paths.iter().rev() {
            let blocks = blocks(path).iter().rev().map(|block| block.sequence).collect();
            index.apply(rank(1), &BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All });
        }
        assert_eq!((index.memory().runs, index.held(rank(1)).len()), (0, 0));
        assert_eq!(index.writer.lock().entries_of_test(), [0, 0]);
    }
}

#[test]
fn a_session_that_moves_between_ranks_visits_few_runs() {
    let (index, mut oracle) = (RunIndex::default(), Oracle::default());
    let mut request = 0;
    let last = session(60, 2, |path, from| {
        // A new rank stores the whole prompt; outputs are its own.
        let from = if path.len() > from + 1 { 0 } else { from };
        request += u64::from(from == 0);
        let event = stores(path, from);
        assert_eq!(index.apply(rank(request % 5), &event), oracle.apply(rank(request % 5), &event));
        if request % 10 == 0 {
            assert_eq!(index.find(&query(path)).sorted(), oracle.find(&query(path)).sorted());
        }
    });
    let runs = visited(&index, &last);
    assert!(runs <= 8, "{runs} runs of a session of {} blocks and 60 requests", last.len());
}

/// Prompts that branch where others branch already stay where they are: moving a tail for each would cost more than it
/// saves.
#[test]
fn a_tail_moves_once_at_a_position() {
    let index = RunIndex::default();
    let steps = || index.writer.lock().steps.taken();
    let prompt = |user: u64| -> Vec<u64> { (0..8).chain((0..24).map(|block| 1_000 * user + block)).collect() };
    for user in 1..10 {
        index.apply(rank(1), &stores(&prompt(user), 0));
    }
    let before = steps();
    index.apply(rank(1), &stores(&prompt(11), 0));
    let first = steps() - before;
    assert_eq!(visited(&index, &prompt(2)), 1, "the second prompt continued in the run and has not moved since");
    assert!((3..10).all(|user| visited(&index, &prompt(user)) == 2));
    assert!(first < 10, "{first} steps");
}

#[test]
fn answers_equal_the_oracle_while_sessions_fork_move_and_are_evicted() {
    for seed in 0..30 {
        let (index, mut oracle) = (RunIndex::default(), Oracle::default());
        let mut state = seed;
        let mut below = |end: u64| {
            state = u64::wrapping_mul(state, 6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        let mut sessions: Vec<Vec<u64>> = vec![(0..12).collect()];
        for step in 0..150 {
            let at = below(sessions.len() as u64) as usize;
            let worker = rank(if below(4) == 0 { below(4) } else { at as u64 % 4 });
            let mut path = sessions[at].clone();
            // The next prompt leaves the last one before its end, or continues it.
            path.truncate(path.len() - below(4).min(path.len() as u64 - 1) as usize);
            let kept = path.len();
            path.extend((0..=below(6)).map(|block| 1_000 + step * 10 + block));
            let tier = if below(12) == 0 { Tier::Host } else { Tier::Device };
            let event = match below(12) {
                0..8 => {
                    let from = if below(3) == 0 { kept } else { 0 };
                    let BlockEvent::Stored { parent, blocks, .. } = stores(&path, from) else { unreachable!() };
                    BlockEvent::Stored { tier, parent, blocks, copies: 1 + below(8) as u32 / 7 }
                }
                8 => BlockEvent::Copied { tier, blocks: blocks(&path).iter().map(|block| block.sequence).collect() },
                9 if below(10) == 0 => BlockEvent::Cleared,
                _ => {
                    let blocks = blocks(&sessions[at]);
                    let from = below(blocks.len() as u64) as usize;
                    let blocks = blocks[from..].iter().rev().map(|block| block.sequence).collect();
                    BlockEvent::Removed { tier, blocks, copies: RemovedCopies::All }
                }
            };
            let is_stored = matches!(event, BlockEvent::Stored { .. });
            assert_eq!(index.apply(worker, &event).removed, oracle.apply(worker, &event).removed, "{seed} {step}");
            if is_stored && below(8) == 0 && sessions.len() < 6 {
                sessions.push(path.clone());
            } else if is_stored {
                sessions[at] = path.clone();
            }
            if below(10) == 0 {
                index.maintain();
            }
            for path in sessions.iter().chain([&path]) {
                assert_eq!(index.find(&query(path)).sorted(), oracle.find(&query(path)).sorted(), "{seed} {step}");
            }
        }
        for worker in 0..4 {
            let (mut held, mut expected) = (index.held(rank(worker)), oracle.held(rank(worker)));
            held.sort_unstable_by_key(|block| block.sequence);
            expected.sort_unstable_by_key(|block| block.sequence);
            assert_eq!(held, expected, "{seed}");
            index.clear_rank(rank(worker));
        }
        assert_eq!((index.memory().runs, index.memory().domains), (0, 0), "nothing is kept");
    }
}
