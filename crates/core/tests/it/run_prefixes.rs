//! Prefixes found by their cursors: found as long as a rank holds them, and never other blocks.

use flash_indexer_core::cursor::{CHECKPOINT_BLOCKS, PrefixCursor};
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::run::{RunIndex, RunLimits};
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, RemovedCopies, SequenceHash, ShardedIndex, SharedIndex, Tier, WorkerId,
    WorkerRank,
};
use proptest::collection::vec;
use proptest::prelude::*;

const WORKERS: u64 = 6;
const LENGTHS: [usize; 8] = [10, 31, 32, 33, 64, 100, 300, 700];

/// Prompts of one family that leave each other in the middle of sections and at their ends.
#[derive(Debug, Clone, Copy)]
struct Prompt {
    leaves_at: usize,
    blocks: usize,
}

impl Prompt {
    fn locals(self) -> Vec<LocalHash> {
        let own = 1 + self.leaves_at as u64;
        (0..self.blocks).map(|at| LocalHash(at as u64 + if at < self.leaves_at { 0 } else { own * 10_000 })).collect()
    }
}

#[derive(Debug, Clone)]
enum Change {
    /// Stores blocks `from..` of a prompt, `step` blocks with each event.
    Store {
        worker: u64,
        prompt: Prompt,
        from: usize,
        step: usize,
    },
    /// The same under other sequence hashes: twins.
    StoreTwins {
        worker: u64,
        prompt: Prompt,
    },
    /// Removes blocks from the end, one with each event or all with one.
    Evict {
        worker: u64,
        prompt: Prompt,
        keep: usize,
        one_by_one: bool,
    },
    Clear {
        worker: u64,
    },
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let leaves_at = prop::sample::select(vec![0, 1, 31, 32, 33, 50, 96, 200, 512, 600]);
    let blocks = prop::sample::select(LENGTHS.to_vec());
    (leaves_at, blocks).prop_map(|(leaves_at, blocks)| Prompt { leaves_at, blocks })
}

fn change() -> impl Strategy<Value = Change> {
    let step = prop::sample::select(vec![1, 7, 32, 1_000]);
    let from = prop_oneof![3 => Just(0), 1 => 0..100usize];
    prop_oneof![
        8 => (0..WORKERS, prompt(), from, step)
            .prop_map(|(worker, prompt, from, step)| Change::Store { worker, prompt, from, step }),
        1 => (0..WORKERS, prompt()).prop_map(|(worker, prompt)| Change::StoreTwins { worker, prompt }),
        5 => (0..WORKERS, prompt(), 0..700usize, any::<bool>())
            .prop_map(|(worker, prompt, keep, one_by_one)| Change::Evict { worker, prompt, keep, one_by_one }),
        1 => (0..WORKERS).prop_map(|worker| Change::Clear { worker }),
    ]
}

fn sequences(seed: u64, locals: &[LocalHash]) -> Vec<SequenceHash> {
    sequence_hashes(locals).map(|hash| SequenceHash(hash.0 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
}

fn store(index: &RunIndex, rank: WorkerRank, seed: u64, prompt: Prompt, (from, step): (usize, usize)) {
    let locals = prompt.locals();
    let sequences = sequences(seed, &locals);
    for from in (from..locals.len()).step_by(step) {
        let blocks =
            (from..locals.len().min(from + step)).map(|at| Block { sequence: sequences[at], local: locals[at] });
        let parent = from.checked_sub(1).map(|at| sequences[at]);
        index.apply(rank, &BlockEvent::Stored { tier: Tier::Device, parent, blocks: blocks.collect(), copies: 1 });
    }
}

fn apply(index: &RunIndex, change: &Change) {
    let rank = |worker| WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) };
    // Two of three engines share a seed.
    let seed = |worker: u64| if worker.is_multiple_of(3) { worker } else { 1_000_000 };
    match *change {
        Change::Store { worker, prompt, from, step } => store(index, rank(worker), seed(worker), prompt, (from, step)),
        Change::StoreTwins { worker, prompt } => store(index, rank(worker), 77, prompt, (0, 1_000)),
        Change::Evict { worker, prompt, keep, one_by_one } => {
            let sequences = sequences(seed(worker), &prompt.locals());
            let gone: Vec<_> = sequences.into_iter().skip(keep).rev().collect();
            for blocks in gone.chunks(if one_by_one { 1 } else { gone.len().max(1) }) {
                let (blocks, copies) = (blocks.to_vec(), RemovedCopies::All);
                index.apply(rank(worker), &BlockEvent::Removed { tier: Tier::Device, blocks, copies });
            }
        }
        Change::Clear { worker } => index.clear_rank(rank(worker)),
    }
}

/// Checks the prefix at each checkpoint of a prompt.
fn check(index: &RunIndex, locals: &[LocalHash]) -> Result<(), TestCaseError> {
    let held = index.find(locals).ranks.iter().map(|found| found.longest()).max().unwrap_or(0) as usize;
    for blocks in (CHECKPOINT_BLOCKS..=locals.len()).step_by(CHECKPOINT_BLOCKS) {
        let (cursor, covered) = PrefixCursor::last_of(&locals[..blocks]).expect("a section");
        prop_assert_eq!(covered, blocks);
        let found = index.prefix(cursor);
        prop_assert!(found.is_some() || blocks > held, "the first {} of {} held blocks are not found", blocks, held);
        if let Some(found) = found {
            prop_assert_eq!(found.as_slice(), &locals[..blocks]);
            // The answer for the whole prompt.
            let whole: Vec<LocalHash> = found.into_iter().chain(locals[blocks..].iter().copied()).collect();
            prop_assert_eq!(index.find(&whole), index.find(locals));
        }
    }
    Ok(())
}

fn check_all(index: &RunIndex, changes: &[Change], queries: &[Prompt]) -> Result<(), TestCaseError> {
    for change in changes {
        apply(index, change);
        for query in queries {
            check(index, &query.locals())?;
        }
    }
    for worker in 0..WORKERS {
        index.remove_worker(WorkerId(worker));
    }
    while index.maintain() {}
    for query in queries {
        let locals = query.locals();
        for blocks in (CHECKPOINT_BLOCKS..=locals.len()).step_by(CHECKPOINT_BLOCKS) {
            let (cursor, _) = PrefixCursor::last_of(&locals[..blocks]).expect("a section");
            prop_assert_eq!(index.prefix(cursor), None, "no rank holds anything");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::support::cases(60))]

    #[test]
    fn a_held_prefix_is_found_by_its_cursor_and_no_other(changes in vec(change(), 1..40), queries in vec(prompt(), 4)) {
        check_all(&RunIndex::default(), &changes, &queries)?;
    }

    /// Prefixes stay findable if eviction, or the copy of a smaller limit, keeps their blocks.
    #[test]
    fn a_held_prefix_is_found_in_a_bounded_index(changes in vec(change(), 1..40), queries in vec(prompt(), 4)) {
        let index = RunIndex::bounded(RunLimits::default(), 2 << 20).expect("enough memory");
        check_all(&index, &changes, &queries)?;
        for change in &changes {
            apply(&index, change);
        }
        index.set_memory_max(1 << 20, 1 << 20);
        for query in &queries {
            check(&index, &query.locals())?;
        }
    }
}

#[test]
fn an_unknown_cursor_finds_nothing() {
    let index = RunIndex::default();
    assert_eq!(index.prefix(PrefixCursor(0)), None);
    apply(&index, &Change::Store { worker: 1, prompt: Prompt { leaves_at: 0, blocks: 700 }, from: 0, step: 1_000 });
    assert_eq!((0..1_000).find_map(|cursor| index.prefix(PrefixCursor(cursor))), None);
}

/// A rank's blocks are in one shard, whichever that is.
#[test]
fn a_sharded_index_finds_the_prefixes_of_every_shard() {
    let index = ShardedIndex::new(4, RunIndex::default);
    let prompts = [1, 2, 3, 4, 5, 6, 7, 8].map(|leaves_at| Prompt { leaves_at, blocks: 40 });
    for (worker, prompt) in (1..).zip(prompts) {
        let locals = prompt.locals();
        let blocks = sequences(0, &locals).into_iter().zip(&locals);
        let blocks = blocks.map(|(sequence, &local)| Block { sequence, local }).collect();
        let rank = WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) };
        index.apply(rank, &BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 });
    }
    for prompt in prompts {
        let locals = prompt.locals();
        let (cursor, blocks) = PrefixCursor::last_of(&locals).expect("a complete section");
        assert_eq!(index.prefix(cursor).as_deref(), Some(&locals[..blocks]), "{prompt:?}");
    }
}
