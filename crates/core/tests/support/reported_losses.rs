//! The check that an index reports its losses.

use std::collections::BTreeSet;

use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{AppliedChanges, BlockEvent, LocalHash, LockedIndex, MatchScores, SharedIndex, WorkerRank};
use proptest::prelude::*;

use crate::support::{Step, check_equal};

/// Applies a stream to an index that may drop a rank or leave blocks waiting, and to the oracle, in which a dropped rank
/// is cleared. After every event a rank that answers differently from the oracle has waiting blocks; after maintenance no
/// rank does. Each drop is reported by the event, or by the rank's next one. Returns the number of reports.
pub(crate) fn check_reported_losses(
    index: &dyn SharedIndex,
    steps: &[Step],
    queries: &[Vec<LocalHash>],
) -> Result<usize, TestCaseError> {
    let (oracle, mut reports) = (LockedIndex::<Oracle>::default(), 0);
    // Ranks that were dropped meanwhile and have not reported it.
    let mut unreported = BTreeSet::new();
    for step in steps {
        let waiting = match step {
            Step::Event(rank, _) => index.size(*rank).waiting,
            Step::ClearRank(_) | Step::RemoveWorker(_) => 0,
        };
        let (applied, expected) = (step.apply(index), step.apply(&oracle));
        if let Step::Event(rank, BlockEvent::Removed { .. }) = step {
            // The index had no deferred work: only the event changes the number of waiting blocks.
            let waiting_removed = waiting - index.size(*rank).waiting;
            prop_assert_eq!(applied.waiting_removed, waiting_removed as u64, "{:?}", step);
        }
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
                    prop_assert_eq!(
                        AppliedChanges { waiting: 0, waiting_removed: 0, ..applied },
                        expected,
                        "{:?}",
                        step
                    );
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
