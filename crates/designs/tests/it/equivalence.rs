//! Every exact design gives the answers of the oracle after every step of a random stream.

#[path = "../../../core/tests/support/equivalence.rs"]
mod checks;

use std::num::NonZeroUsize;

use flash_indexer_core::SharedIndex;
use flash_indexer_designs::{Actor, Design, DroppedRankSearch, Positional, PositionalOptions, RadixTree};
use proptest::collection::vec;
use proptest::prelude::*;

use self::checks::check_index;

macro_rules! equals_the_oracle {
    ($cases:literal; $($name:ident: $build:expr,)*) => {
        proptest! {
            #![proptest_config(crate::support::cases($cases))]
            $(
                #[test]
                fn $name(steps in crate::support::stream(40), queries in vec(crate::support::path(), 12)) {
                    check_index(|| $build, &steps, &queries)?;
                }
            )*
        }
    };
}

equals_the_oracle! { 3000;
    radix_tree: Design::RadixTree.build(),
    concurrent_radix_tree: Design::ConcurrentRadixTree.build(),
    positional: jumping(2, DroppedRankSearch::Scan),
    positional_binary: jumping(3, DroppedRankSearch::Binary),
}

// Variants of designs above, with fewer streams.
equals_the_oracle! { 300;
    positional_by_name: Design::Positional.build(),
    positional_binary_by_name: Design::PositionalBinary.build(),
}

// Each request costs two thread switches, so there are few streams.
equals_the_oracle! { 30;
    actor: Box::new(Actor::<RadixTree>::default()),
}

/// A positional index with jumps that are shorter than the queries of the tests.
fn jumping(jump_size: usize, dropped_rank_search: DroppedRankSearch) -> Box<dyn SharedIndex> {
    let jump_size = NonZeroUsize::new(jump_size).expect("not zero");
    Box::new(Positional::new(PositionalOptions { jump_size, dropped_rank_search, ..PositionalOptions::default() }))
}
