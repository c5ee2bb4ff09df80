//! Every exact design answers as the oracle does, after every step of any stream.

#[path = "../../core/tests/support/equivalence.rs"]
mod equivalence;
#[path = "../../core/tests/support/mod.rs"]
mod support;

use std::num::NonZeroUsize;

use flash_indexer_core::SharedIndex;
use flash_indexer_designs::{
    Actor, ConcurrentRadixTree, Design, LostRankSearch, Positional, PositionalOptions, RadixTree, ThreadPool,
    ThreadPoolOptions,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::equivalence::check_index;

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
    radix_tree: Design::RadixTree.build(),
    concurrent_radix_tree: Design::ConcurrentRadixTree.build(),
    positional: jumping(2, LostRankSearch::Scan),
    positional_binary: jumping(3, LostRankSearch::Binary),
}

// What wraps a design is tested with fewer streams: its rules are not in question.
equals_the_oracle! { 300;
    positional_by_name: Design::Positional.build(),
    positional_binary_by_name: Design::PositionalBinary.build(),
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
