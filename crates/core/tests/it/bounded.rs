//! The run index with a memory limit: an evicted block counts as removed, and the index never exceeds its limit.

use std::collections::HashSet;
use std::sync::Arc;

use crate::support::check_equal;
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::run::{INDEX_BYTES_MIN, RunIndex, RunLimits};
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, LockedIndex, MemoryLimit, RemovedCopies, SequenceHash, SharedIndex, Tier,
    WorkerId, WorkerRank,
};
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;

const WORKERS: u64 = 24;
/// Content of the prompts: far more than fits.
const FAMILIES: u64 = 400;

type Evicted = Arc<Mutex<Vec<(WorkerRank, Vec<Tier>, Vec<SequenceHash>)>>>;

/// An index, and the blocks that it has reported as evicted since the list was last emptied.
fn bounded(bytes_max: usize) -> (RunIndex, Evicted) {
    let index = RunIndex::bounded(RunLimits::default(), bytes_max).expect("enough for an index");
    let evicted = Evicted::default();
    let reported = Arc::clone(&evicted);
    index.on_evicted(Box::new(move |rank, tiers, sequences| {
        reported.lock().push((rank, tiers.to_vec(), sequences.to_vec()));
    }));
    (index, evicted)
}

fn bound(index: &RunIndex) -> MemoryLimit {
    index.memory_limit().expect("the index is bounded")
}

/// Applies an event to the index, and to the oracle together with removals of the evicted blocks.
///
/// Blocks evicted to make room for an event that stores them again are removed before the event. Blocks refused in
/// one tier of an event are removed after it.
fn apply_to_both(index: &RunIndex, oracle: &dyn SharedIndex, evicted: &Evicted, rank: WorkerRank, event: &BlockEvent) {
    index.apply(rank, event);
    let evicted = std::mem::take(&mut *evicted.lock());
    let stored: HashSet<SequenceHash> = match event {
        BlockEvent::Stored { blocks, .. } => blocks.iter().map(|block| block.sequence).collect(),
        _ => HashSet::new(),
    };
    let held: HashSet<SequenceHash> = match evicted.iter().any(|(of, ..)| *of == rank) {
        true => index.held(rank).into_iter().map(|block| block.sequence).collect(),
        false => HashSet::new(),
    };
    let is_stored_again = |of: WorkerRank, tiers: &[Tier], sequence: &SequenceHash| {
        of == rank && tiers == Tier::ALL && stored.contains(sequence) && held.contains(sequence)
    };
    for (of, tiers, sequences) in &evicted {
        remove(oracle, *of, tiers, sequences.iter().filter(|sequence| is_stored_again(*of, tiers, sequence)));
    }
    oracle.apply(rank, event);
    for (of, tiers, sequences) in &evicted {
        remove(oracle, *of, tiers, sequences.iter().filter(|sequence| !is_stored_again(*of, tiers, sequence)));
    }
}

fn remove<'a>(
    from: &dyn SharedIndex,
    rank: WorkerRank,
    tiers: &[Tier],
    sequences: impl Iterator<Item = &'a SequenceHash>,
) {
    let blocks: Vec<SequenceHash> = sequences.copied().collect();
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
        8 => (0..WORKERS, prompt(), 0..1_100usize, 1..80usize, tier(), crate::support::removed_copies())
            .prop_map(|(worker, prompt, from, count, tier, copies)| Change::Remove { worker, prompt, from, count, tier, copies }),
        2 => (0..WORKERS, prompt(), 0..300usize, 1..80usize, tier())
            .prop_map(|(worker, prompt, from, count, tier)| Change::Copy { worker, prompt, from, count, tier }),
        1 => (0..WORKERS).prop_map(|worker| Change::Clear { worker }),
        10 => prompt().prop_map(|prompt| Change::Ask { prompt }),
    ]
}

/// Two of three engines share a seed.
fn sequences(worker: u64, locals: &[LocalHash]) -> Vec<SequenceHash> {
    let seed = if worker.is_multiple_of(3) { worker + 1 } else { 0 };
    sequence_hashes(locals).map(|hash| SequenceHash(hash.0 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
}

fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) }
}

fn event(change: &Change) -> Option<(WorkerRank, BlockEvent)> {
    let some_sequences = |worker: u64, prompt: Prompt, from: usize, count: usize| -> Vec<SequenceHash> {
        let sequences = sequences(worker, &prompt.locals());
        let from = from.min(sequences.len() - 1);
        sequences[from..(from + count).min(sequences.len())].iter().rev().copied().collect()
    };
    Some(match *change {
        Change::Store { worker, prompt, from, tier, copies } => {
            let locals = prompt.locals();
            let sequences = sequences(worker, &locals);
            let from = from.min(locals.len() - 1);
            let parent = from.checked_sub(1).map(|at| sequences[at]);
            let blocks = (from..locals.len()).map(|at| Block { sequence: sequences[at], local: locals[at] }).collect();
            (rank(worker), BlockEvent::Stored { tier, parent, blocks, copies })
        }
        Change::Remove { worker, prompt, from, count, tier, copies } => {
            (rank(worker), BlockEvent::Removed { tier, blocks: some_sequences(worker, prompt, from, count), copies })
        }
        Change::Copy { worker, prompt, from, count, tier } => {
            (rank(worker), BlockEvent::Copied { tier, blocks: some_sequences(worker, prompt, from, count) })
        }
        Change::Clear { worker } => (rank(worker), BlockEvent::Cleared),
        Change::Ask { .. } => return None,
    })
}

proptest! {
    #![proptest_config(crate::support::cases(10))]

    /// After every event the index is within its limit, and every answer equals that of an oracle that received
    /// removals of the evicted blocks.
    #[test]
    fn a_bounded_index_equals_an_oracle_that_receives_its_evictions(
        bytes_max in INDEX_BYTES_MIN..2 * INDEX_BYTES_MIN,
        changes in vec(change(), 100..400),
        queries in vec(prompt(), 6),
    ) {
        let (index, evicted) = bounded(bytes_max);
        let oracle = LockedIndex::<Oracle>::default();
        let queries: Vec<_> = queries.into_iter().map(Prompt::locals).collect();
        for (number, change) in changes.iter().enumerate() {
            match (event(change), change) {
                (Some((rank, event)), _) => {
                    apply_to_both(&index, &oracle, &evicted, rank, &event);
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

/// Leading blocks of a prompt that the worker holds in the index.
fn depth(index: &dyn SharedIndex, worker: u64, prompt: Prompt) -> usize {
    index.find(&prompt.locals()).get(rank(worker)).map_or(0, |found| found.longest() as usize)
}

fn alone(family: u64) -> Prompt {
    Prompt { family, leaves_at: 0, blocks: 200 }
}

#[test]
fn a_limit_below_the_minimum_is_rejected() {
    let refused = RunIndex::bounded(RunLimits::default(), INDEX_BYTES_MIN - 1);
    assert!(refused.is_err_and(|error| error.to_string().contains("1 MiB")));
}

/// The index keeps prompts that queries match and evicts the others.
#[test]
fn queried_prompts_survive_eviction() {
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

/// Ranks are partial from their first eviction until the index has none of their blocks.
#[test]
fn ranks_are_partial_from_an_eviction_until_a_clear() {
    let (index, _) = bounded(INDEX_BYTES_MIN);
    store(&index, 0, alone(0));
    assert!(bound(&index).partial_ranks.is_empty());
    (1..500).for_each(|family| store(&index, family % 3, alone(family)));
    assert_eq!(bound(&index).partial_ranks.len(), 3);
    index.clear_rank(rank(0));
    index.remove_worker(WorkerId(1));
    assert_eq!(bound(&index).partial_ranks.iter().copied().collect::<Vec<_>>(), [rank(2)]);
}

/// Blocks that follow an evicted block could not count, and are refused.
#[test]
fn blocks_that_follow_evicted_blocks_are_refused() {
    let (index, _) = bounded(INDEX_BYTES_MIN);
    store(&index, 0, alone(0));
    (1..500).for_each(|family| store(&index, 1, alone(family)));
    assert_eq!(depth(&index, 0, alone(0)), 0, "it is evicted");
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
    assert_eq!(depth(&index, 0, alone(0)), 200, "stored again it counts again");
}

/// A tier that is new to a rank adds a holder to each of its runs. Without room for these, the index refuses and
/// reports copies in that tier, stored or copied, and the rank is partial. So is a rank for which there is no room at
/// all.
#[test]
fn blocks_refused_in_a_tier_are_reported() {
    // Holders of a run that fit without a list.
    const HOLDERS: u64 = 8;
    let (index, evicted) = bounded(4 * INDEX_BYTES_MIN);
    let oracle = LockedIndex::<Oracle>::default();
    let apply = |change: Change| {
        let (rank, event) = event(&change).expect("an event");
        apply_to_both(&index, &oracle, &evicted, rank, &event);
        check_equal(&index, &oracle, &[alone(0).locals()]).expect("they are equal");
    };
    let store = |worker: u64, tier: Tier| Change::Store { worker, prompt: alone(0), from: 0, tier, copies: 1 };
    (0..HOLDERS).for_each(|worker| apply(store(worker, Tier::Device)));
    // The smallest limit in which the index fits without compaction.
    let bytes = bound(&index).bytes;
    let least = (bytes..).find(|max| max - max / 32 >= bytes).expect("there is one");
    index.set_memory_max(least, 0);
    assert!(bound(&index).partial_ranks.is_empty());
    apply(store(1, Tier::Host));
    apply(Change::Copy { worker: 2, prompt: alone(0), from: 0, count: 200, tier: Tier::External });
    apply(store(HOLDERS, Tier::Device));
    let bound = bound(&index);
    assert_eq!((bound.refused_blocks, bound.evicted_blocks), (600, 0), "no held block is evicted");
    let mut partial: Vec<WorkerRank> = bound.partial_ranks.iter().copied().collect();
    partial.sort_unstable();
    assert_eq!(partial, [rank(1), rank(2), rank(HOLDERS)]);
    assert!((0..HOLDERS).all(|worker| depth(&index, worker, alone(0)) == 200));
}

/// Half of the memory, and twice as much again: the remaining blocks are correct, and the index stays within the
/// limit.
#[test]
fn the_memory_limit_can_change() {
    let (index, evicted) = bounded(8 * INDEX_BYTES_MIN);
    let oracle = LockedIndex::<Oracle>::default();
    let tell = |families: std::ops::Range<u64>| {
        for family in families {
            let worker = family % WORKERS;
            let change = Change::Store { worker, prompt: alone(family), from: 0, tier: Tier::Device, copies: 1 };
            let (rank, event) = event(&change).expect("an event");
            apply_to_both(&index, &oracle, &evicted, rank, &event);
        }
    };
    let queries: Vec<_> = (0..FAMILIES).step_by(7).map(|family| alone(family).locals()).collect();
    tell(0..2_000);
    assert!(bound(&index).bytes > 7 * INDEX_BYTES_MIN);
    index.set_memory_max(3 * INDEX_BYTES_MIN, 2 * INDEX_BYTES_MIN);
    for (rank, tiers, sequences) in evicted.lock().drain(..) {
        remove(&oracle, rank, &tiers, sequences.iter());
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
