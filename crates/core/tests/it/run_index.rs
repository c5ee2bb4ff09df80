//! The run index at sizes that reach all of its forms: chains longer than runs, more holders than a header has room
//! for, many hash seeds, and redefined sequence hashes.

use crate::support::check_equal;
use crate::top::check_top;
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, LockedIndex, RemovedCopies, SequenceHash, SharedIndex, Tier, WorkerId,
    WorkerRank,
};
use proptest::collection::vec;
use proptest::prelude::*;

const WORKERS: u64 = 40;

/// A prompt of one of a few trees: each turn of a conversation continues where another one branched off.
#[derive(Debug, Clone, Copy)]
struct Prompt {
    family: u64,
    /// Where it leaves the family's common chain.
    leaves_at: usize,
    blocks: usize,
}

impl Prompt {
    fn locals(self) -> Vec<LocalHash> {
        let common = (0..self.leaves_at).map(|at| at as u64);
        let own = (self.leaves_at..self.blocks).map(|at| 1_000 + at as u64 * 10 + self.leaves_at as u64 % 7);
        common.chain(own).take(self.blocks).map(|content| LocalHash(self.family * 100_000 + content)).collect()
    }
}

#[derive(Debug, Clone)]
enum Change {
    /// A worker stores blocks `from..` of a prompt.
    Store { worker: u64, prompt: Prompt, from: usize, tier: Tier },
    /// Removes `count` blocks at the end, last first, or some in the middle.
    Evict { worker: u64, prompt: Prompt, from: usize, count: usize, tier: Tier },
    /// A restart, or the loss of a worker.
    Clear { worker: u64 },
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let lengths = prop_oneof![4 => 1..30usize, 2 => 30..200usize, 1 => 500..1_100usize];
    (0..3u64, lengths, 0.0..1.0f64).prop_map(|(family, blocks, share)| {
        // Only a few branching points, so that prompts also share their own parts.
        let leaves_at = ((share * 8.0) as usize * blocks / 8).min(blocks);
        Prompt { family, leaves_at, blocks }
    })
}

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![8 => Just(Tier::Device), 2 => Just(Tier::Host), 1 => Just(Tier::External)]
}

fn change() -> impl Strategy<Value = Change> {
    let from = prop_oneof![4 => Just(0), 1 => 0..40usize];
    prop_oneof![
        10 => (0..WORKERS, prompt(), from, tier())
            .prop_map(|(worker, prompt, from, tier)| Change::Store { worker, prompt, from, tier }),
        6 => (0..WORKERS, prompt(), 0..1_100usize, 1..80usize, tier())
            .prop_map(|(worker, prompt, from, count, tier)| Change::Evict { worker, prompt, from, count, tier }),
        1 => (0..WORKERS).prop_map(|worker| Change::Clear { worker }),
    ]
}

/// Sequence hashes of the worker's engine. Two of three engines share a seed.
fn sequences(worker: u64, locals: &[LocalHash]) -> Vec<SequenceHash> {
    let seed = if worker.is_multiple_of(3) { worker } else { 1_000_000 };
    sequence_hashes(locals).map(|hash| SequenceHash(hash.0 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
}

fn event(change: &Change) -> (WorkerRank, BlockEvent) {
    match *change {
        Change::Store { worker, prompt, from, tier } => {
            let locals = prompt.locals();
            let sequences = sequences(worker, &locals);
            let from = from.min(locals.len() - 1);
            let parent = from.checked_sub(1).map(|at| sequences[at]);
            let blocks = (from..locals.len()).map(|at| Block { sequence: sequences[at], local: locals[at] }).collect();
            (rank(worker), BlockEvent::Stored { tier, parent, blocks, copies: 1 })
        }
        Change::Evict { worker, prompt, from, count, tier } => {
            let sequences = sequences(worker, &prompt.locals());
            let from = from.min(sequences.len() - 1);
            let blocks = sequences[from..(from + count).min(sequences.len())].iter().rev().copied().collect();
            (rank(worker), BlockEvent::Removed { tier, blocks, copies: RemovedCopies::All })
        }
        Change::Clear { worker } => (rank(worker), BlockEvent::Cleared),
    }
}

fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) }
}

proptest! {
    #![proptest_config(crate::support::cases(60))]

    #[test]
    fn the_run_index_equals_the_oracle_at_large_sizes(changes in vec(change(), 1..150), queries in vec(prompt(), 6)) {
        let (index, oracle) = (RunIndex::default(), LockedIndex::<Oracle>::default());
        let queries: Vec<_> = queries.into_iter().map(Prompt::locals).collect();
        for (number, change) in changes.iter().enumerate() {
            let (rank, event) = event(change);
            let (mut applied, expected) = (index.apply(rank, &event), oracle.apply(rank, &event));
            (applied.waiting, applied.waiting_removed) = (0, 0);
            prop_assert_eq!(applied, expected, "{:?}", change);
            if number % 16 == 0 {
                check_equal(&index, &oracle, &queries)?;
            }
        }
        check_equal(&index, &oracle, &queries)?;
        let restored = RunIndex::default();
        crate::support::restore(&index, &restored);
        check_equal(&restored, &oracle, &queries)?;
        for rank in oracle.ranks() {
            index.clear_rank(rank);
        }
        prop_assert!(index.ranks().is_empty());
    }

    /// Many ranks hold parts of one conversation to different depths: the deepest few may be among any of them.
    #[test]
    fn find_top_returns_the_deepest_of_many_ranks(
        holders in vec((1..60usize, 0..60usize, any::<bool>()), 1..200),
        turns in vec(1..20usize, 1..6),
        cut in 1..60usize,
    ) {
        let (index, oracle) = (RunIndex::default(), LockedIndex::<Oracle>::default());
        let ends = turns.iter().scan(0, |end, turn| { *end += turn; Some(*end) });
        let ends: Vec<usize> = ends.collect();
        let chain: Vec<LocalHash> = (0..60).map(LocalHash).collect();
        let sequences = sequences(1, &chain);
        for (worker, &(blocks, removed, loses_one)) in holders.iter().enumerate() {
            // Turn by turn, so that the chain has several runs.
            let mut from = 0;
            for end in ends.iter().copied().chain([60]).map(|end| end.min(blocks)).filter(|&end| end > 0) {
                let blocks = (from..end).map(|at| Block { sequence: sequences[at], local: chain[at] }).collect();
                let parent = from.checked_sub(1).map(|at: usize| sequences[at]);
                let event = BlockEvent::Stored { tier: Tier::Device, parent, blocks, copies: 1 };
                prop_assert_eq!(index.apply(rank(worker as u64), &event), oracle.apply(rank(worker as u64), &event));
                from = end;
            }
            if loses_one {
                let blocks = vec![sequences[removed]];
                let event = BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All };
                prop_assert_eq!(index.apply(rank(worker as u64), &event), oracle.apply(rank(worker as u64), &event));
            }
        }
        for query in [&chain[..], &chain[..cut]] {
            let expected = oracle.find(query);
            prop_assert_eq!(index.find(query).sorted(), expected.clone().sorted());
            for count in [0, 1, 8, 64, 65, 300] {
                check_top(&index, &expected, query, (count, Tier::Device));
            }
        }
    }

    /// Chains grow and lose their ends in steps of every size: fingerprints of sections must match the current
    /// blocks.
    #[test]
    fn long_chains_grow_and_lose_their_ends(steps in vec((0..400usize, 1..300usize), 1..8), cuts in vec(0.0..1.0f64, 3)) {
        let (index, oracle) = (RunIndex::default(), LockedIndex::<Oracle>::default());
        let (mut chain, mut queries) = (Vec::new(), Vec::new());
        for (step, &(lost, new)) in (1..).zip(&steps) {
            let sequences_before = sequences(1, &chain);
            let kept = chain.len() - lost.min(chain.len());
            if kept < chain.len() {
                let blocks = sequences_before[kept..].iter().rev().copied().collect();
                let event = BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All };
                prop_assert_eq!(index.apply(rank(1), &event), oracle.apply(rank(1), &event));
            }
            chain.truncate(kept);
            chain.extend((0..new as u64).map(|at| LocalHash(step << 32 | at)));
            let sequences = sequences(1, &chain);
            let blocks = (kept..chain.len()).map(|at| Block { sequence: sequences[at], local: chain[at] }).collect();
            let parent = kept.checked_sub(1).map(|at| sequences[at]);
            let event = BlockEvent::Stored { tier: Tier::Device, parent, blocks, copies: 1 };
            prop_assert_eq!(index.apply(rank(1), &event), oracle.apply(rank(1), &event));
            queries.push(chain.clone());
            for cut in &cuts {
                // A different block at some position.
                let mut query = chain.clone();
                let at = (query.len() as f64 * cut) as usize;
                query[at] = LocalHash(u64::MAX);
                queries.push(query);
            }
            check_equal(&index, &oracle, &queries)?;
        }
    }
}

#[test]
fn a_block_of_any_rank_is_found_by_its_sequence_hash() {
    let index = RunIndex::default();
    let rank = |worker| WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) };
    // More blocks than a run has, so that a parent is in another run.
    let locals: Vec<LocalHash> = (0..700).map(LocalHash).collect();
    // Engines with three hash seeds, and two with the same one.
    let sequence = |worker: u64, at: usize| SequenceHash((worker % 3 + 1) * 1_000_000 + at as u64);
    for worker in 0..4 {
        let blocks = locals.iter().enumerate().map(|(at, &local)| Block { sequence: sequence(worker, at), local });
        let event = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks: blocks.collect(), copies: 1 };
        index.apply(rank(worker), &event);
    }
    let find = |worker, at| index.find_block(sequence(worker, at)).map(|found| (found.parent, found.local));
    for at in [0_usize, 1, 511, 512, 699] {
        let parent = |worker| at.checked_sub(1).map(|parent| sequence(worker, parent));
        for worker in 0..4 {
            assert_eq!(find(worker, at), Some((parent(worker), locals[at])), "block {at} of {worker}");
        }
    }
    assert_eq!(index.find_block(SequenceHash(7)), None);
    index.clear_rank(rank(0));
    assert_eq!(find(0, 699), Some((Some(sequence(3, 698)), locals[699])), "another rank holds it under this hash");
    index.clear_rank(rank(3));
    while index.maintain() {}
    assert_eq!(find(0, 699), None);
}
