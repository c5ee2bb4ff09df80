//! Every exact design answers as the oracle does, after every step of any stream.

mod support;

use std::num::NonZeroUsize;

use flash_indexer_core::designs::{
    ConcurrentRadixTree, Design, LostRankSearch, Positional, PositionalOptions, RadixTree, RunIndex,
};
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{
    Actor, Applied, BlockEvent, LocalHash, Locked, PREFETCH_DISTANCE, RemovedCopies, Sharded, SharedIndex, ThreadPool,
    ThreadPoolOptions,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::{Step, check_equal, restore};

/// Drives an index and the oracle with the same stream and compares them after every step; then
/// checks that dumps restore the state, here and there, and that nothing is left when all is removed.
fn check_index(
    build: impl Fn() -> Box<dyn SharedIndex>,
    steps: &[Step],
    queries: &[Vec<LocalHash>],
) -> Result<(), TestCaseError> {
    let (index, oracle) = (build(), Locked::<Oracle>::default());
    for (at, step) in steps.iter().enumerate() {
        // Announced events change nothing, whatever is applied before their turn.
        if let Some(Step::Event(rank, event)) = steps.get(at + PREFETCH_DISTANCE) {
            index.prefetch(*rank, event);
        }
        let (applied, expected) = (step.apply(&*index), step.apply(&oracle));
        prop_assert_eq!(Applied { waiting: 0, ..applied }, expected, "{:?}", step);
        check_equal(&*index, &oracle, queries)?;
    }
    for (from, to) in [(&*index, build()), (&oracle, build()), (&*index, Box::<Locked<Oracle>>::default())] {
        restore(from, &*to);
        check_equal(&*to, &oracle, queries)?;
    }
    remove_every_copy(&*index);
    prop_assert!(index.ranks().is_empty());
    for query in queries {
        prop_assert!(index.find(query).ranks.is_empty(), "{:?}", query);
    }
    Ok(())
}

fn remove_every_copy(index: &dyn SharedIndex) {
    for rank in index.ranks() {
        for block in index.held(rank) {
            for (tier, &copies) in block.copies.iter() {
                let one_by_one = copies < 100;
                let (blocks, copies) = match one_by_one {
                    true => (vec![block.sequence; copies as usize], RemovedCopies::One),
                    false => (vec![block.sequence], RemovedCopies::All),
                };
                index.apply(rank, &BlockEvent::Removed { tier, blocks, copies });
            }
        }
    }
}

macro_rules! equals_the_oracle {
    ($cases:literal; $($name:ident: $build:expr,)*) => {
        proptest! {
            #![proptest_config(support::cases($cases))]
            $(
                #[test]
                fn $name(steps in support::stream(40), queries in vec(support::path(), 12)) {
                    check_index(|| $build, &steps, &queries)?;
                }
            )*
        }
    };
}

equals_the_oracle! { 3000;
    run: Design::Run.build(),
    radix_tree: Design::RadixTree.build(),
    concurrent_radix_tree: Design::ConcurrentRadixTree.build(),
    positional: jumping(2, LostRankSearch::Scan),
    positional_binary: jumping(3, LostRankSearch::Binary),
}

// What wraps a design is tested with fewer streams: its rules are not in question.
equals_the_oracle! { 300;
    positional_by_name: Design::Positional.build(),
    positional_binary_by_name: Design::PositionalBinary.build(),
    sharded: Box::new(Sharded::new(two(), RunIndex::default)),
    pooled: Box::new(ThreadPool::new(ConcurrentRadixTree::default(), pool())),
}

// Every question passes between threads twice.
equals_the_oracle! { 30;
    actor: Box::new(Actor::<RadixTree>::default()),
}

/// Queries of tests are short, so that jumps must be shorter.
fn jumping(jump_size: usize, lost_rank_search: LostRankSearch) -> Box<dyn SharedIndex> {
    let jump_size = NonZeroUsize::new(jump_size).expect("not zero");
    Box::new(Positional::new(PositionalOptions { jump_size, lost_rank_search, ..PositionalOptions::default() }))
}

fn pool() -> ThreadPoolOptions {
    ThreadPoolOptions { threads: two(), queued_changes_max: NonZeroUsize::MIN }
}

fn two() -> NonZeroUsize {
    NonZeroUsize::new(2).expect("two is not zero")
}
