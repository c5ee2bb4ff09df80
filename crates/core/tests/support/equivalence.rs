//! The check that an index answers as the oracle does.

use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{
    AppliedChanges, BlockEvent, LocalHash, LockedIndex, PREFETCH_DISTANCE, RemovedCopies, SharedIndex,
};
use proptest::prelude::*;

use crate::support::{Step, check_equal, restore};

/// Applies a stream to an index and to the oracle and compares them after every step. Then checks that dumps restore the
/// state, in an index and in the oracle, and that an index without copies is empty.
pub(crate) fn check_index(
    build: impl Fn() -> Box<dyn SharedIndex>,
    steps: &[Step],
    queries: &[Vec<LocalHash>],
) -> Result<(), TestCaseError> {
    let (index, oracle) = (build(), LockedIndex::<Oracle>::default());
    for (at, step) in steps.iter().enumerate() {
        // A prefetch changes no answer, regardless of the events applied before its own.
        if let Some(Step::Event(rank, event)) = steps.get(at + PREFETCH_DISTANCE) {
            index.prefetch(*rank, event);
        }
        let (applied, expected) = (step.apply(&*index), step.apply(&oracle));
        prop_assert_eq!(AppliedChanges { waiting: 0, waiting_removed: 0, ..applied }, expected, "{:?}", step);
        check_equal(&*index, &oracle, queries)?;
        if let Step::Event(rank, BlockEvent::Removed { blocks, .. }) = step {
            for &block in blocks {
                prop_assert_eq!(index.is_held(*rank, block), oracle.is_held(*rank, block), "{:?} {:?}", rank, block);
            }
        }
    }
    for (from, to) in [(&*index, build()), (&oracle, build()), (&*index, Box::<LockedIndex<Oracle>>::default())] {
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
