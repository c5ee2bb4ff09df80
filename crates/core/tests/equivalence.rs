//! Every exact design answers as the oracle does, after every step of any stream.

mod support;

use flash_indexer_core::designs::Design;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{Applied, BlockEvent, LocalHash, Locked, RemovedCopies, SharedIndex};
use proptest::collection::vec;
use proptest::prelude::*;
use support::{Step, check_equal, restore};

/// Drives an index and the oracle with the same stream and compares them after every step; then
/// checks that dumps restore the state, here and there, and that nothing is left when all is removed.
fn check_design(design: Design, steps: &[Step], queries: &[Vec<LocalHash>]) -> Result<(), TestCaseError> {
    let (index, oracle) = (design.build(), Locked::<Oracle>::default());
    for step in steps {
        let (applied, expected) = (step.apply(&*index), step.apply(&oracle));
        prop_assert_eq!(Applied { waiting: 0, ..applied }, expected, "{:?}", step);
        check_equal(&*index, &oracle, queries)?;
    }
    for (from, to) in
        [(&*index, design.build()), (&oracle, design.build()), (&*index, Box::<Locked<Oracle>>::default())]
    {
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
    ($($name:ident: $design:ident,)*) => {
        proptest! {
            #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]
            $(
                #[test]
                fn $name(steps in support::stream(40), queries in vec(support::path(), 12)) {
                    check_design(Design::$design, &steps, &queries)?;
                }
            )*
        }
    };
}

equals_the_oracle! {
    radix_tree: RadixTree,
    run: Run,
}
