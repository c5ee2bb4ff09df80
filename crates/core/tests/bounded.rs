//! The run index within a bound of memory: what it forgets it treats as removed, and it never takes more
//! than it may.

mod support;

use std::collections::HashSet;
use std::sync::Arc;

use flash_indexer_core::designs::{INDEX_BYTES_MIN, RunIndex, RunLimits};
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, Locked, MemoryLimit, RemovedCopies, SequenceHash, SharedIndex, Tier,
    WorkerId, WorkerRank,
};
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;
use support::check_equal;

const WORKERS: u64 = 24;
/// Content that prompts are made of: far more than fits.
const FAMILIES: u64 = 400;

type Forgotten = Arc<Mutex<Vec<(WorkerRank, Vec<Tier>, Vec<SequenceHash>)>>>;

/// An index, and what it has reported as forgotten since the list was last emptied.
fn bounded(bytes_max: usize) -> (RunIndex, Forgotten) {
    let index = RunIndex::bounded(RunLimits::default(), bytes_max).expect("enough for an index");
    let forgotten = Forgotten::default();
    let reported = Arc::clone(&forgotten);
    index.on_evicted(Box::new(move |rank, tiers, names| {
        reported.lock().push((rank, tiers.to_vec(), names.to_vec()));
    }));
    (index, forgotten)
}

fn bound(index: &RunIndex) -> MemoryLimit {
    index.memory_limit().expect("the index is bounded")
}

/// Applies an event to the index, and to the oracle together with removals where the index forgot.
///
/// What is forgotten to make room for an event that stores it again is stored again after that: its removal comes first.
/// What is refused of an event in one tier is removed after it.
fn apply_to_both(
    index: &RunIndex,
    oracle: &dyn SharedIndex,
    forgotten: &Forgotten,
    rank: WorkerRank,
    event: &BlockEvent,
) {
    index.apply(rank, event);
    let forgotten = std::mem::take(&mut *forgotten.lock());
    let stored: HashSet<SequenceHash> = match event {
        BlockEvent::Stored { blocks, .. } => blocks.iter().map(|block| block.sequence).collect(),
        _ => HashSet::new(),
    };
    let held: HashSet<SequenceHash> = match forgotten.iter().any(|(of, ..)| *of == rank) {
        true => index.held(rank).into_iter().map(|block| block.sequence).collect(),
        false => HashSet::new(),
    };
    let is_stored_again = |of: WorkerRank, tiers: &[Tier], name: &SequenceHash| {
        of == rank && tiers == Tier::ALL && stored.contains(name) && held.contains(name)
    };
    for (of, tiers, names) in &forgotten {
        remove(oracle, *of, tiers, names.iter().filter(|name| is_stored_again(*of, tiers, name)));
    }
    oracle.apply(rank, event);
    for (of, tiers, names) in &forgotten {
        remove(oracle, *of, tiers, names.iter().filter(|name| !is_stored_again(*of, tiers, name)));
    }
}

fn remove<'a>(from: &dyn SharedIndex, rank: WorkerRank, tiers: &[Tier], names: impl Iterator<Item = &'a SequenceHash>) {
    let blocks: Vec<SequenceHash> = names.copied().collect();
    for &tier in tiers {
        from.apply(rank, &BlockEvent::Removed { tier, blocks: blocks.clone(), copies: RemovedCopies::All });
    }
}

#[derive(Debug, Clone, Copy)]
struct Prompt {
    family: u64,
    leaves_at: usize,
    blocks: usize,
}

impl Prompt {
    fn locals(self) -> Vec<LocalHash> {
        let content =
            |at: usize| if at < self.leaves_at { at as u64 } else { 5_000 + at as u64 * 8 + self.leaves_at as u64 % 7 };
        (0..self.blocks).map(|at| LocalHash(self.family * 100_000 + content(at))).collect()
    }
}

#[derive(Debug, Clone)]
enum Change {
    Store { worker: u64, prompt: Prompt, from: usize, tier: Tier, copies: u32 },
    Remove { worker: u64, prompt: Prompt, from: usize, count: usize, tier: Tier, copies: RemovedCopies },
    Copy { worker: u64, prompt: Prompt, from: usize, count: usize, tier: Tier },
    Clear { worker: u64 },
    Ask { prompt: Prompt },
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let family = prop_oneof![1 => 0..4u64, 3 => 0..FAMILIES];
    let lengths = prop_oneof![2 => 1..30usize, 4 => 30..300usize, 2 => 500..1_100usize];
    (family, lengths, 0..8usize).prop_map(|(family, blocks, eighths)| Prompt {
        family,
        leaves_at: eighths * blocks / 8,
        blocks,
    })
}

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![12 => Just(Tier::Device), 1 => Just(Tier::Host), 1 => Just(Tier::External)]
}

fn change() -> impl Strategy<Value = Change> {
    let from = || prop_oneof![6 => Just(0), 1 => 0..40usize];
    let copies = prop_oneof![9 => Just(1u32), 1 => 2..4u32];
    prop_oneof![
        30 => (0..WORKERS, prompt(), from(), tier(), copies)
            .prop_map(|(worker, prompt, from, tier, copies)| Change::Store { worker, prompt, from, tier, copies }),
        8 => (0..WORKERS, prompt(), 0..1_100usize, 1..80usize, tier(), support::removed_copies())
            .prop_map(|(worker, prompt, from, count, tier, copies)| Change::Remove { worker, prompt, from, count, tier, copies }),
        2 => (0..WORKERS, prompt(), 0..300usize, 1..80usize, tier())
            .prop_map(|(worker, prompt, from, count, tier)| Change::Copy { worker, prompt, from, count, tier }),
        1 => (0..WORKERS).prop_map(|worker| Change::Clear { worker }),
        10 => prompt().prop_map(|prompt| Change::Ask { prompt }),
    ]
}

/// Of three engines two have the same seed.
fn names(worker: u64, locals: &[LocalHash]) -> Vec<SequenceHash> {
    let seed = if worker.is_multiple_of(3) { worker + 1 } else { 0 };
    sequence_hashes(locals).map(|hash| SequenceHash(hash.0 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
}

fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) }
}

fn event(change: &Change) -> Option<(WorkerRank, BlockEvent)> {
    let some_names = |worker: u64, prompt: Prompt, from: usize, count: usize| -> Vec<SequenceHash> {
        let names = names(worker, &prompt.locals());
        let from = from.min(names.len() - 1);
        names[from..(from + count).min(names.len())].iter().rev().copied().collect()
    };
    Some(match *change {
        Change::Store { worker, prompt, from, tier, copies } => {
            let locals = prompt.locals();
            let names = names(worker, &locals);
            let from = from.min(locals.len() - 1);
            let parent = from.checked_sub(1).map(|at| names[at]);
            let blocks = (from..locals.len()).map(|at| Block { sequence: names[at], local: locals[at] }).collect();
            (rank(worker), BlockEvent::Stored { tier, parent, blocks, copies })
        }
        Change::Remove { worker, prompt, from, count, tier, copies } => {
            (rank(worker), BlockEvent::Removed { tier, blocks: some_names(worker, prompt, from, count), copies })
        }
        Change::Copy { worker, prompt, from, count, tier } => {
            (rank(worker), BlockEvent::Copied { tier, blocks: some_names(worker, prompt, from, count) })
        }
        Change::Clear { worker } => (rank(worker), BlockEvent::Cleared),
        Change::Ask { .. } => return None,
    })
}

proptest! {
    #![proptest_config(support::cases(10))]

    /// After every event the bound holds, and everything that can be asked is answered as by an oracle that
    /// was told of removals where the index forgot.
    #[test]
    fn equals_an_oracle_that_is_told_what_was_forgotten(
        bytes_max in INDEX_BYTES_MIN..2 * INDEX_BYTES_MIN,
        changes in vec(change(), 100..400),
        queries in vec(prompt(), 6),
    ) {
        let (index, forgotten) = bounded(bytes_max);
        let oracle = Locked::<Oracle>::default();
        let queries: Vec<_> = queries.into_iter().map(Prompt::locals).collect();
        for (number, change) in changes.iter().enumerate() {
            match (event(change), change) {
                (Some((rank, event)), _) => {
                    apply_to_both(&index, &oracle, &forgotten, rank, &event);
                }
                (None, Change::Ask { prompt }) => drop(index.find(&prompt.locals())),
                (None, _) => {}
            }
            let bound = bound(&index);
            prop_assert!(bound.bytes_highest <= bytes_max, "{bound:?} after {number} changes");
            if number % 32 == 0 {
                check_equal(&index, &oracle, &queries)?;
            }
        }
        check_equal(&index, &oracle, &queries)?;
    }
}

fn store(index: &dyn SharedIndex, worker: u64, prompt: Prompt) {
    if let Some((rank, event)) = event(&Change::Store { worker, prompt, from: 0, tier: Tier::Device, copies: 1 }) {
        index.apply(rank, &event);
    }
}

/// Leading blocks of a prompt that the worker is known to hold.
fn depth(index: &dyn SharedIndex, worker: u64, prompt: Prompt) -> usize {
    index.find(&prompt.locals()).get(rank(worker)).map_or(0, |found| found.longest() as usize)
}

fn alone(family: u64) -> Prompt {
    Prompt { family, leaves_at: 0, blocks: 200 }
}

#[test]
fn too_low_a_bound_is_refused() {
    let refused = RunIndex::bounded(RunLimits::default(), INDEX_BYTES_MIN - 1);
    assert!(refused.is_err_and(|error| error.to_string().contains("1 MiB")));
}

/// What is asked for stays, and what nobody asked for goes.
#[test]
fn what_is_of_use_is_kept() {
    let (index, _) = bounded(INDEX_BYTES_MIN);
    let used: Vec<Prompt> = (0..4).map(alone).collect();
    used.iter().for_each(|&prompt| store(&index, 0, prompt));
    for family in 10..1_000 {
        store(&index, family % WORKERS, alone(family));
        used.iter().for_each(|&prompt| drop(index.find(&prompt.locals())));
    }
    assert!(bound(&index).evicted_blocks > 100_000, "{:?}", bound(&index));
    for prompt in used {
        assert_eq!(depth(&index, 0, prompt), 200, "{prompt:?}");
    }
    assert!((10..500).all(|family| depth(&index, family % WORKERS, alone(family)) == 0));
}

/// Ranks are partial from the first block that is forgotten until nothing is known of them.
#[test]
fn partial_ranks_are_named_until_they_are_cleared() {
    let (index, _) = bounded(INDEX_BYTES_MIN);
    store(&index, 0, alone(0));
    assert!(bound(&index).partial_ranks.is_empty());
    (1..500).for_each(|family| store(&index, family % 3, alone(family)));
    assert_eq!(bound(&index).partial_ranks.len(), 3);
    index.clear_rank(rank(0));
    index.remove_worker(WorkerId(1));
    assert_eq!(bound(&index).partial_ranks.iter().copied().collect::<Vec<_>>(), [rank(2)]);
}

/// What follows a block that was forgotten could not count, and is not kept.
#[test]
fn what_follows_forgotten_blocks_is_refused() {
    let (index, _) = bounded(INDEX_BYTES_MIN);
    store(&index, 0, alone(0));
    (1..500).for_each(|family| store(&index, 1, alone(family)));
    assert_eq!(depth(&index, 0, alone(0)), 0, "it is forgotten");
    let turn = Change::Store {
        worker: 0,
        prompt: Prompt { blocks: 250, ..alone(0) },
        from: 200,
        tier: Tier::Device,
        copies: 1,
    };
    let (rank, event) = event(&turn).expect("an event");
    assert_eq!(index.apply(rank, &event).refused, 50);
    assert_eq!(index.size(rank).blocks, 0);
    store(&index, 0, alone(0));
    assert_eq!(depth(&index, 0, alone(0)), 200, "told again it counts again");
}

/// A tier that is new to a rank takes a holder in each of its runs. Where there is no room for these, its copies are refused
/// and reported, stored or copied, and the rank is partial. So is a rank for which there is no room at all.
#[test]
fn what_is_refused_of_a_tier_is_reported() {
    // All that a run holds without a list.
    const HOLDERS: u64 = 10;
    let (index, forgotten) = bounded(4 * INDEX_BYTES_MIN);
    let oracle = Locked::<Oracle>::default();
    let apply = |change: Change| {
        let (rank, event) = event(&change).expect("an event");
        apply_to_both(&index, &oracle, &forgotten, rank, &event);
        check_equal(&index, &oracle, &[alone(0).locals()]).expect("they are equal");
    };
    let store = |worker: u64, tier: Tier| Change::Store { worker, prompt: alone(0), from: 0, tier, copies: 1 };
    (0..HOLDERS).for_each(|worker| apply(store(worker, Tier::Device)));
    // The least bound in which the index fits as it is.
    let bytes = bound(&index).bytes;
    let least = (bytes..).find(|max| max - max / 32 >= bytes).expect("there is one");
    index.set_memory_max(least, 0);
    assert!(bound(&index).partial_ranks.is_empty());
    apply(store(1, Tier::Host));
    apply(Change::Copy { worker: 2, prompt: alone(0), from: 0, count: 200, tier: Tier::External });
    apply(store(HOLDERS, Tier::Device));
    let bound = bound(&index);
    assert_eq!((bound.refused_blocks, bound.evicted_blocks), (600, 0), "nothing goes that was held");
    let mut partial: Vec<WorkerRank> = bound.partial_ranks.iter().copied().collect();
    partial.sort_unstable();
    assert_eq!(partial, [rank(1), rank(2), rank(HOLDERS)]);
    assert!((0..HOLDERS).all(|worker| depth(&index, worker, alone(0)) == 200));
}

/// Half of the memory, and twice of it again: what is kept is right, and no more than that is taken.
#[test]
fn a_bound_can_change() {
    let (index, forgotten) = bounded(8 * INDEX_BYTES_MIN);
    let oracle = Locked::<Oracle>::default();
    let tell = |families: std::ops::Range<u64>| {
        for family in families {
            let worker = family % WORKERS;
            let change = Change::Store { worker, prompt: alone(family), from: 0, tier: Tier::Device, copies: 1 };
            let (rank, event) = event(&change).expect("an event");
            apply_to_both(&index, &oracle, &forgotten, rank, &event);
        }
    };
    let queries: Vec<_> = (0..FAMILIES).step_by(7).map(|family| alone(family).locals()).collect();
    tell(0..2_000);
    assert!(bound(&index).bytes > 7 * INDEX_BYTES_MIN);
    index.set_memory_max(3 * INDEX_BYTES_MIN, 2 * INDEX_BYTES_MIN);
    for (rank, tiers, names) in forgotten.lock().drain(..) {
        remove(&oracle, rank, &tiers, names.iter());
    }
    assert!(bound(&index).bytes <= 3 * INDEX_BYTES_MIN, "{:?}", bound(&index));
    assert!(index.sizes().iter().map(|(_, size)| size.blocks).sum::<usize>() > 2_000, "the best of it is kept");
    check_equal(&index, &oracle, &queries).expect("they are equal");
    tell(2_000..3_000);
    assert!(bound(&index).bytes <= 3 * INDEX_BYTES_MIN, "{:?}", bound(&index));
    check_equal(&index, &oracle, &queries).expect("they are equal");
    index.set_memory_max(8 * INDEX_BYTES_MIN, 0);
    tell(3_000..4_000);
    assert!(bound(&index).bytes > 4 * INDEX_BYTES_MIN);
    check_equal(&index, &oracle, &queries).expect("they are equal");
}
