//! The limits of the radix tree, the release of its nodes, and the order of its dumps.

use crate::support::Step;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::rank_blocks::RankBlockLimits;
use flash_indexer_core::{
    Block, BlockEvent, DpRank, HeldBlock, LocalHash, LockedIndex, PrefixIndex, SequenceHash, SharedIndex, Tier,
    WorkerId, WorkerRank,
};
use flash_indexer_designs::RadixTree;
use proptest::collection::vec;
use proptest::prelude::*;

fn apply(tree: &mut RadixTree, step: &Step) -> u64 {
    match step {
        Step::Event(rank, event) => return tree.apply(*rank, event).refused,
        Step::ClearRank(rank) => tree.clear_rank(*rank),
        Step::RemoveWorker(worker) => tree.remove_worker(*worker),
    }
    0
}

proptest! {
    #![proptest_config(crate::support::cases(3000))]

    #[test]
    fn a_tree_without_held_blocks_has_no_node(steps in crate::support::stream(40)) {
        let mut tree = RadixTree::default();
        for step in &steps {
            apply(&mut tree, step);
        }
        for rank in tree.ranks() {
            tree.clear_rank(rank);
        }
        prop_assert_eq!(tree.node_count(), 0);
    }

    #[test]
    fn a_tree_with_limits_never_claims_too_much(
        steps in crate::support::stream(60),
        queries in vec(crate::support::path(), 12),
        waiting_blocks_max in 0..4usize,
        removed_blocks_max in 0..4usize,
    ) {
        let limits = RankBlockLimits { waiting_blocks_max, removed_blocks_max };
        let (mut tree, oracle) = (RadixTree::new(limits), LockedIndex::<Oracle>::default());
        let mut refused = 0;
        for step in &steps {
            refused += apply(&mut tree, step);
            step.apply(&oracle);
            for query in &queries {
                let (found, exact) = (tree.find(query), oracle.find(query));
                if refused == 0 {
                    prop_assert_eq!(found.clone().sorted(), exact.clone().sorted());
                }
                for found in found.ranks {
                    let exact = exact.get(found.rank).map(|exact| exact.blocks).unwrap_or_default();
                    prop_assert!(found.blocks.iter().all(|(tier, &blocks)| blocks <= exact[tier]), "{:?}", query);
                }
            }
        }
        for rank in tree.ranks() {
            tree.clear_rank(rank);
        }
        prop_assert_eq!(tree.node_count(), 0);
    }

    #[test]
    fn a_dump_stores_parents_before_children(steps in crate::support::stream(40)) {
        let mut tree = RadixTree::default();
        for step in &steps {
            apply(&mut tree, step);
        }
        for rank in tree.ranks() {
            let held: Vec<SequenceHash> = tree.held(rank).iter().map(|block| block.sequence).collect();
            let mut named = Vec::new();
            let mut late_parents = Vec::new();
            for event in tree.dump(rank) {
                let BlockEvent::Stored { parent, blocks, .. } = event else { panic!("a dump only stores") };
                late_parents.extend(parent.filter(|parent| held.contains(parent) && !named.contains(parent)));
                named.extend(blocks.iter().map(|block| block.sequence));
            }
            // Only a block of a parent cycle can be stored before its parent.
            for parent in late_parents {
                prop_assert!(is_in_a_cycle(&tree.held(rank), parent), "{:?} is stored after its child", parent);
            }
        }
    }
}

fn is_in_a_cycle(held: &[HeldBlock], start: SequenceHash) -> bool {
    let parent_of = |sequence| held.iter().find(|block| block.sequence == sequence).and_then(|block| block.parent);
    let mut at = start;
    for _ in 0..=held.len() {
        match parent_of(at) {
            Some(parent) if parent == start => return true,
            Some(parent) => at = parent,
            None => return false,
        }
    }
    false
}

#[test]
fn a_tree_at_its_limit_of_waiting_blocks_counts_further_blocks_as_refused() {
    let rank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
    let mut tree = RadixTree::new(RankBlockLimits { waiting_blocks_max: 2, ..RankBlockLimits::default() });
    let block = |n| Block { sequence: SequenceHash(n), local: LocalHash(n) };
    let stored = |parent: Option<u64>, blocks: &[u64]| BlockEvent::Stored {
        tier: Tier::Device,
        parent: parent.map(SequenceHash),
        blocks: blocks.iter().map(|&n| block(n)).collect(),
        copies: 1,
    };
    let applied = tree.apply(rank, &stored(Some(1), &[2, 3, 4]));
    assert_eq!((applied.stored, applied.waiting, applied.refused), (2, 2, 1));
    assert!(tree.find(&[LocalHash(1)]).ranks.is_empty());

    tree.apply(rank, &stored(None, &[1]));
    assert_eq!(tree.size(rank).waiting, 0);
    let found = tree.find(&[1, 2, 3, 4].map(LocalHash));
    assert_eq!(
        found.get(rank).expect("the rank holds the first block").blocks[Tier::Device],
        3,
        "the tree does not hold the refused block"
    );
}
