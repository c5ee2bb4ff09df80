//! The positional index against the radix tree, with sequences longer than a jump.

use std::num::NonZeroUsize;
use std::ops::Range;

use crate::support::check_equal;
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, LockedIndex, RemovedCopies, SequenceHash, SharedIndex, Tier, WorkerId,
    WorkerRank,
};
use flash_indexer_designs::{DroppedRankSearch, Positional, PositionalOptions, RadixTree};
use proptest::collection::vec;
use proptest::prelude::*;

const LENGTH: usize = 200;

/// A sequence that differs from a common one in the 10 blocks from `own_from`, between two checkpoints.
fn sequence(own: u64, own_from: usize) -> Vec<LocalHash> {
    let is_own = |at: usize| own > 0 && (own_from..own_from + 10).contains(&at);
    (0..LENGTH).map(|at| LocalHash(if is_own(at) { own << 32 | at as u64 } else { at as u64 })).collect()
}

/// Part of one sequence stored or removed by one rank.
#[derive(Debug, Clone)]
struct Change {
    worker: u64,
    tier: Tier,
    sequence: Vec<LocalHash>,
    range: Range<usize>,
    is_stored: bool,
}

impl Change {
    fn apply(&self, index: &dyn SharedIndex) {
        let Self { worker, tier, ref sequence, ref range, is_stored } = *self;
        // Every worker has a different hash seed.
        let names: Vec<SequenceHash> =
            sequence_hashes(sequence).map(|hash| SequenceHash(hash.0.wrapping_add(worker))).collect();
        let event = if is_stored {
            let blocks = range.clone().map(|at| Block { sequence: names[at], local: sequence[at] }).collect();
            let parent = range.start.checked_sub(1).map(|at| names[at]);
            BlockEvent::Stored { tier, parent, blocks, copies: 1 }
        } else {
            BlockEvent::Removed { tier, blocks: names[range.clone()].to_vec(), copies: RemovedCopies::All }
        };
        index.apply(WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) }, &event);
    }
}

fn any_sequence() -> impl Strategy<Value = Vec<LocalHash>> {
    (0..3u64, prop_oneof![Just(40usize), Just(100)]).prop_map(|(own, own_from)| sequence(own, own_from))
}

/// Mostly the changes of engines, stored prefixes and removed ends; sometimes a gap.
fn change() -> impl Strategy<Value = Change> {
    let range = prop_oneof![
        6 => (1..=LENGTH).prop_map(|end| (true, 0..end)),
        4 => (0..LENGTH).prop_map(|start| (false, start..LENGTH)),
        1 => (0..LENGTH - 5, any::<bool>()).prop_map(|(start, is_stored)| (is_stored, start..start + 5)),
    ];
    let tier = prop_oneof![4 => Just(Tier::Device), 1 => Just(Tier::Host)];
    (0..4u64, tier, any_sequence(), range).prop_map(|(worker, tier, sequence, (is_stored, range))| Change {
        worker,
        tier,
        sequence,
        range,
        is_stored,
    })
}

fn query() -> impl Strategy<Value = Vec<LocalHash>> {
    (any_sequence(), 1..=LENGTH).prop_map(|(sequence, length)| sequence[..length].to_vec())
}

proptest! {
    #![proptest_config(crate::support::cases(1000))]

    #[test]
    fn jumps_of_any_size_give_the_answers_of_the_radix_tree(
        changes in vec(change(), 1..15),
        queries in vec(query(), 6),
        jump_size in prop_oneof![Just(64usize), Just(32), 1..300usize],
        is_binary in any::<bool>(),
    ) {
        let jump_size = NonZeroUsize::new(jump_size).expect("at least one");
        let dropped_rank_search = if is_binary { DroppedRankSearch::Binary } else { DroppedRankSearch::Scan };
        let index = Positional::new(PositionalOptions { jump_size, dropped_rank_search, ..PositionalOptions::default() });
        let tree = LockedIndex::<RadixTree>::default();
        for change in &changes {
            change.apply(&index);
            change.apply(&tree);
            check_equal(&index, &tree, &queries)?;
        }
    }
}

#[test]
fn a_query_does_not_jump_over_a_gap_or_over_another_prefix_at_a_checkpoint() {
    let index = Positional::default();
    let common = sequence(0, 0);
    let change = |worker, sequence: &[LocalHash], range: Range<usize>, is_stored| {
        Change { worker, tier: Tier::Device, sequence: sequence.to_vec(), range, is_stored }.apply(&index);
    };
    change(0, &common, 0..LENGTH, true);
    // Worker 1 misses a block between two checkpoints of a jump of 64.
    change(1, &common, 0..LENGTH, true);
    change(1, &common, 70..71, false);
    // Worker 2 holds the query's local hash at every checkpoint, under another prefix.
    change(2, &sequence(1, 40), 0..LENGTH, true);

    let found = index.find(&common).sorted();
    let depths: Vec<u32> = found.ranks.iter().map(|found| found.longest()).collect();
    assert_eq!(depths, [LENGTH as u32, 70, 40]);
}
