//! The deepest few ranks of an answer equal those of the complete answer.

use std::collections::BTreeSet;

use flash_indexer_core::run::{RunIndex, RunMatches};
use flash_indexer_core::{LocalHash, MatchScores, Tier};

/// Panics unless the deepest `count` ranks in a level are those of `expected`, the complete answer.
pub(crate) fn check_top(index: &RunIndex, expected: &MatchScores, query: &[LocalHash], (count, level): (usize, Tier)) {
    let mut depths: Vec<u32> = expected.ranks.iter().map(|found| found.blocks[level]).filter(|&d| d > 0).collect();
    depths.sort_unstable_by_key(|&depth| std::cmp::Reverse(depth));
    depths.truncate(count);
    let mut matches = RunMatches::default();
    index.find_top(query, count, level, &mut matches);
    let holders = index.holders().holders;
    let top: Vec<(usize, u32)> = matches.top().collect();
    assert_eq!(top.iter().map(|found| found.1).collect::<Vec<_>>(), depths, "the deepest {count} of {query:?}");
    let mut ranks = BTreeSet::new();
    for (holder, depth) in top {
        let rank = holders[holder].expect("every found holder is assigned").rank;
        assert_eq!(expected.get(rank).map(|found| found.blocks[level]), Some(depth));
        assert!(ranks.insert(rank), "{rank:?} is found once");
    }
}
