//! Every design answers as the oracle does, after every step of any stream.

mod support;

use flash_indexer_core::designs::{RadixTree, RadixTreeLimits};
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{
    Applied, Block, BlockEvent, DpRank, HeldBlock, LocalHash, PrefixIndex, RemovedCopies, SequenceHash, Tier, WorkerId,
    WorkerRank,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::Step;

fn apply(index: &mut dyn PrefixIndex, step: &Step) -> Applied {
    match step {
        Step::Event(rank, event) => return index.apply(*rank, event),
        Step::ClearRank(rank) => index.clear_rank(*rank),
        Step::RemoveWorker(worker) => index.remove_worker(*worker),
    }
    Applied::default()
}

fn held(index: &dyn PrefixIndex, rank: WorkerRank) -> Vec<HeldBlock> {
    let mut held = index.held(rank);
    held.sort_by_key(|block| block.sequence);
    held
}

fn ranks(index: &dyn PrefixIndex) -> Vec<WorkerRank> {
    let mut ranks = index.ranks();
    ranks.sort();
    ranks
}

/// Everything that can be asked of an index is answered as the oracle answers it.
fn check_equal(index: &dyn PrefixIndex, oracle: &Oracle, queries: &[Vec<LocalHash>]) -> Result<(), TestCaseError> {
    for query in queries {
        prop_assert_eq!(index.find(query).sorted(), oracle.find(query).sorted(), "query {:?}", query);
    }
    prop_assert_eq!(ranks(index), ranks(oracle));
    for rank in oracle.ranks() {
        prop_assert_eq!(held(index, rank), held(oracle, rank));
        let (size, expected) = (index.size(rank), oracle.size(rank));
        prop_assert_eq!((size.blocks, size.by_tier), (expected.blocks, expected.by_tier));
    }
    Ok(())
}

/// An index fed with another one's dump.
fn restored<I: PrefixIndex + Default>(from: &dyn PrefixIndex) -> I {
    let mut index = I::default();
    for rank in from.ranks() {
        for event in from.dump(rank) {
            index.apply(rank, &event);
        }
    }
    index
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn radix_tree_equals_the_oracle(steps in support::stream(40), queries in vec(support::path(), 12)) {
        let (mut tree, mut oracle) = (RadixTree::default(), Oracle::default());
        for step in &steps {
            let (applied, expected) = (apply(&mut tree, step), apply(&mut oracle, step));
            prop_assert_eq!(Applied { waiting: 0, ..applied }, expected, "{:?}", step);
            check_equal(&tree, &oracle, &queries)?;
        }
        check_equal(&restored::<RadixTree>(&tree), &oracle, &queries)?;
        check_equal(&restored::<RadixTree>(&oracle), &oracle, &queries)?;
        check_equal(&restored::<Oracle>(&tree), &oracle, &queries)?;
        for rank in tree.ranks() {
            tree.clear_rank(rank);
        }
        prop_assert_eq!(tree.node_count(), 0, "an empty tree keeps no node");
    }

    #[test]
    fn removing_every_copy_leaves_nothing(steps in support::stream(40)) {
        let mut tree = RadixTree::default();
        for step in &steps {
            apply(&mut tree, step);
        }
        for rank in tree.ranks() {
            for block in tree.held(rank) {
                for (tier, &copies) in block.copies.iter() {
                    let one_by_one = copies < 100;
                    let (blocks, copies) = match one_by_one {
                        true => (vec![block.sequence; copies as usize], RemovedCopies::One),
                        false => (vec![block.sequence], RemovedCopies::All),
                    };
                    tree.apply(rank, &BlockEvent::Removed { tier, blocks, copies });
                }
            }
        }
        prop_assert!(tree.ranks().is_empty());
        prop_assert_eq!(tree.node_count(), 0);
    }

    #[test]
    fn limits_never_make_an_answer_too_high(
        steps in support::stream(60),
        queries in vec(support::path(), 12),
        waiting_blocks_max in 0..4usize,
        removed_blocks_max in 0..4usize,
    ) {
        let limits = RadixTreeLimits { waiting_blocks_max, removed_blocks_max };
        let (mut tree, mut oracle) = (RadixTree::new(limits), Oracle::default());
        let mut refused = 0;
        for step in &steps {
            refused += apply(&mut tree, step).refused;
            apply(&mut oracle, step);
            if refused == 0 {
                check_equal(&tree, &oracle, &queries)?;
            }
            for query in &queries {
                let exact = oracle.find(query);
                for found in tree.find(query).ranks {
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
    fn a_dump_names_parents_before_children(steps in support::stream(40)) {
        let mut tree = RadixTree::default();
        for step in &steps {
            apply(&mut tree, step);
        }
        for rank in tree.ranks() {
            let held: Vec<SequenceHash> = tree.held(rank).iter().map(|block| block.sequence).collect();
            let mut named = Vec::new();
            let mut unnamed_parents = Vec::new();
            for event in tree.dump(rank) {
                let BlockEvent::Stored { parent, blocks, .. } = event else { panic!("a dump only stores") };
                unnamed_parents.extend(parent.filter(|parent| held.contains(parent) && !named.contains(parent)));
                named.extend(blocks.iter().map(|block| block.sequence));
            }
            // Only blocks that follow each other in a circle can come before their parent.
            for parent in unnamed_parents {
                prop_assert!(in_a_circle(&tree.held(rank), parent), "{:?} came after its child", parent);
            }
        }
    }
}

fn in_a_circle(held: &[HeldBlock], start: SequenceHash) -> bool {
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
fn waiting_blocks_are_bounded_and_the_refused_are_counted() {
    let rank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
    let mut tree = RadixTree::new(RadixTreeLimits { waiting_blocks_max: 2, ..RadixTreeLimits::default() });
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
    assert_eq!(found.get(rank).expect("it holds the start").blocks[Tier::Device], 3, "what was refused is not there");
}
