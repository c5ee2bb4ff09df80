//! How the radix tree counts recent uses of blocks.

use std::num::NonZeroUsize;
use std::time::Duration;

use flash_indexer_core::designs::{RadixTree, UseWindow};
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, PrefixIndex, RemovedCopies, SequenceHash, Tier, WorkerId, WorkerRank,
};

const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };

/// One chain: block *n* has the name and the content *n*.
fn tree_with_chain(length: u64) -> RadixTree {
    let mut tree = RadixTree::default();
    let blocks = (1..=length).map(|n| Block { sequence: SequenceHash(n), local: LocalHash(n) }).collect();
    tree.apply(RANK, &BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 });
    tree
}

fn window(seconds: u64, uses_max: usize) -> UseWindow {
    UseWindow { length: Duration::from_secs(seconds), uses_max: NonZeroUsize::new(uses_max).expect("not zero") }
}

/// The recent uses that a query of `locals` at a time in seconds is told of.
fn uses(tree: &mut RadixTree, locals: &[u64], seconds: u64, window: UseWindow) -> Vec<u32> {
    let query: Vec<LocalHash> = locals.iter().copied().map(LocalHash).collect();
    let counted = tree.find_and_count(&query, Duration::from_secs(seconds), window);
    assert_eq!(counted.scores, tree.find(&query));
    counted.recent_uses
}

#[test]
fn each_matched_block_is_counted_within_the_window() {
    let (mut tree, window) = (tree_with_chain(3), window(10, 100));
    assert_eq!(uses(&mut tree, &[1, 2], 0, window), [0, 0]);
    assert_eq!(uses(&mut tree, &[1, 2, 3, 4], 5, window), [1, 1, 0], "nobody holds the fourth");
    assert_eq!(uses(&mut tree, &[1, 9], 10, window), [2], "what is ten seconds old counts");
    assert_eq!(uses(&mut tree, &[1, 2, 3], 11, window), [2, 1, 1], "what is older does not");
    assert_eq!(uses(&mut tree, &[7], 11, window), []);
    assert_eq!(uses(&mut tree, &[1, 2, 3], 100, window), [0, 0, 0]);
}

#[test]
fn counts_are_bounded() {
    let (mut tree, window) = (tree_with_chain(1), window(10, 3));
    let counts = (0..6).map(|_| uses(&mut tree, &[1], 0, window)[0]);
    assert_eq!(counts.collect::<Vec<_>>(), [0, 1, 2, 3, 3, 3]);
}

#[test]
fn a_block_that_is_gone_forgets_its_uses() {
    let (mut tree, window) = (tree_with_chain(2), window(10, 100));
    uses(&mut tree, &[1, 2], 0, window);
    let blocks = vec![SequenceHash(2)];
    tree.apply(RANK, &BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::One });
    assert_eq!(uses(&mut tree, &[1, 2], 1, window), [1]);
    let blocks = vec![Block { sequence: SequenceHash(2), local: LocalHash(2) }];
    tree.apply(RANK, &BlockEvent::Stored { tier: Tier::Device, parent: Some(SequenceHash(1)), blocks, copies: 1 });
    assert_eq!(uses(&mut tree, &[1, 2], 2, window), [2, 0]);
}
