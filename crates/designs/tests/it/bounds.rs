//! The limits of the concurrent designs, and the release of their memory when no rank holds a block.

use std::num::NonZeroUsize;

use crate::support::Step;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::rank_blocks::RankBlockLimits;
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, LockedIndex, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank,
};
use flash_indexer_designs::{ConcurrentRadixTree, Positional, PositionalOptions};
use proptest::collection::vec;
use proptest::prelude::*;

const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };

/// A design with limits that reports the number of its nodes or entries.
trait Bounded: SharedIndex {
    fn with_limits(limits: RankBlockLimits) -> Self;
    fn entries(&self) -> usize;
}

impl Bounded for ConcurrentRadixTree {
    fn with_limits(limits: RankBlockLimits) -> Self {
        Self::new(limits)
    }

    fn entries(&self) -> usize {
        self.node_count()
    }
}

impl Bounded for Positional {
    fn with_limits(limits: RankBlockLimits) -> Self {
        let jump_size = NonZeroUsize::new(2).expect("two is not zero");
        Self::new(PositionalOptions { jump_size, limits, ..PositionalOptions::default() })
    }

    fn entries(&self) -> usize {
        self.entry_count()
    }
}

fn refused(index: &impl SharedIndex, step: &Step) -> u64 {
    step.apply(index).refused
}

/// With any limits, answers are never above the oracle's, and equal to it while no block was refused.
fn check_limits<I: Bounded>(
    limits: RankBlockLimits,
    steps: &[Step],
    queries: &[Vec<LocalHash>],
) -> Result<(), TestCaseError> {
    let (index, oracle) = (I::with_limits(limits), LockedIndex::<Oracle>::default());
    let mut all_refused = 0;
    for step in steps {
        all_refused += refused(&index, step);
        step.apply(&oracle);
        for query in queries {
            let (found, exact) = (index.find(query), oracle.find(query));
            if all_refused == 0 {
                prop_assert_eq!(found.clone().sorted(), exact.clone().sorted());
            }
            for found in found.ranks {
                let exact = exact.get(found.rank).map(|exact| exact.blocks).unwrap_or_default();
                prop_assert!(found.blocks.iter().all(|(tier, &blocks)| blocks <= exact[tier]), "{:?}", query);
            }
        }
    }
    for rank in index.ranks() {
        index.clear_rank(rank);
    }
    prop_assert_eq!(index.entries(), 0);
    Ok(())
}

fn limits() -> impl Strategy<Value = RankBlockLimits> {
    let limit = || prop_oneof![0..4usize, Just(usize::MAX)];
    (limit(), limit())
        .prop_map(|(waiting_blocks_max, removed_blocks_max)| RankBlockLimits { waiting_blocks_max, removed_blocks_max })
}

proptest! {
    #![proptest_config(crate::support::cases(1000))]

    #[test]
    fn concurrent_radix_tree_with_limits_never_claims_too_much(
        steps in crate::support::stream(60),
        queries in vec(crate::support::path(), 12),
        limits in limits(),
    ) {
        check_limits::<ConcurrentRadixTree>(limits, &steps, &queries)?;
    }

    #[test]
    fn positional_index_with_limits_never_claims_too_much(
        steps in crate::support::stream(60),
        queries in vec(crate::support::path(), 12),
        limits in limits(),
    ) {
        check_limits::<Positional>(limits, &steps, &queries)?;
    }
}

/// A recursive drop of this chain would overflow the stack of a test.
#[test]
fn a_long_chain_is_dropped_node_by_node() {
    let blocks = |from: u64| (from..from + 1_000).map(|n| Block { sequence: SequenceHash(n), local: LocalHash(n) });
    let tree = ConcurrentRadixTree::default();
    for from in (0..200_000).step_by(1_000) {
        let parent = u64::checked_sub(from, 1).map(SequenceHash);
        let blocks = blocks(from).collect();
        tree.apply(RANK, &BlockEvent::Stored { tier: Tier::Device, parent, blocks, copies: 1 });
    }
    assert_eq!(tree.node_count(), 200_000);
    drop(tree);
}
