//! The check that an index answers as the oracle does.

use std::collections::BTreeSet;

use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{
    Applied, BlockEvent, LocalHash, Locked, MatchScores, PREFETCH_DISTANCE, RemovedCopies, SharedIndex, WorkerRank,
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
    let (index, oracle) = (build(), Locked::<Oracle>::default());
    for (at, step) in steps.iter().enumerate() {
        // A prefetch changes no answer, whatever is applied before its event.
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

/// Applies a stream to an index that may drop a rank or leave blocks waiting, and to the oracle, in which a dropped rank
/// is cleared. After every event a rank that answers otherwise than the oracle has waiting blocks; after maintenance no
/// rank does. Each drop is reported by the event, or by the rank's next one. Returns the number of reports.
pub(crate) fn check_reported_losses(
    index: &dyn SharedIndex,
    steps: &[Step],
    queries: &[Vec<LocalHash>],
) -> Result<usize, TestCaseError> {
    let (oracle, mut reports) = (Locked::<Oracle>::default(), 0);
    // Ranks that were dropped meanwhile and have not reported it.
    let mut unreported = BTreeSet::new();
    for step in steps {
        let (applied, expected) = (step.apply(index), step.apply(&oracle));
        reports += usize::from(applied.refused > 0);
        prop_assert_eq!(applied.refused, applied.moves_refused);
        unreported.extend(cleared_if_dropped(index, &oracle));
        match step {
            Step::Event(rank, BlockEvent::Cleared) | Step::ClearRank(rank) => {
                unreported.remove(rank);
            }
            Step::Event(rank, _) => {
                prop_assert_eq!(applied.refused > 0, unreported.remove(rank), "{:?}", step);
                if applied.refused == 0 {
                    prop_assert_eq!(Applied { waiting: 0, ..applied }, expected, "{:?}", step);
                }
            }
            Step::RemoveWorker(worker) => unreported.retain(|rank| rank.worker != *worker),
        }
        for query in queries {
            let (found, expected) = (index.find(query), oracle.find(query));
            for rank in oracle.ranks() {
                let depth = |scores: &MatchScores| scores.get(rank).map_or(0, |found| found.longest());
                prop_assert!(depth(&found) <= depth(&expected), "{:?}", query);
                let waits = index.size(rank).waiting > 0;
                prop_assert!(depth(&found) == depth(&expected) || waits, "{:?} {:?}", rank, query);
            }
        }
        while index.maintain() {}
        unreported.extend(cleared_if_dropped(index, &oracle));
        check_equal(index, &oracle, queries)?;
    }
    Ok(reports)
}

/// Clears the ranks in the oracle that the index has dropped, and returns them.
fn cleared_if_dropped(index: &dyn SharedIndex, oracle: &dyn SharedIndex) -> Vec<WorkerRank> {
    let dropped: Vec<WorkerRank> = oracle.ranks().into_iter().filter(|&rank| index.size(rank).blocks == 0).collect();
    dropped.iter().for_each(|&rank| oracle.clear_rank(rank));
    dropped
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
