//! The run index, whole or in shards, gives the answers of the oracle after every step of a random stream.

#[path = "../support/equivalence.rs"]
mod checks;
#[path = "../support/reported_losses.rs"]
mod reported_losses;

use crate::support::Step;
use flash_indexer_core::run::{RunIndex, RunLimits};
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, SequenceHash, ShardedIndex, Tier, WorkerId, WorkerRank,
};
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #![proptest_config(crate::support::cases(3000))]

    #[test]
    fn run_index_equals_the_oracle(steps in crate::support::stream(40), queries in vec(crate::support::path(), 12)) {
        checks::check_index(|| Box::<RunIndex>::default(), &steps, &queries)?;
    }

    #[test]
    fn a_sharded_index_equals_the_oracle(
        shards in 1_usize..=4,
        steps in crate::support::stream(40),
        queries in vec(crate::support::path(), 12),
    ) {
        checks::check_index(|| Box::new(ShardedIndex::new(shards, RunIndex::default)), &steps, &queries)?;
    }

    /// A few blocks are moved with an event. The others wait, or the rank is dropped; either is reported.
    #[test]
    fn an_index_that_moves_few_blocks_equals_the_oracle_or_reports_a_loss(
        moved_blocks_max in 0..6_usize,
        steps in crate::support::stream(60),
        queries in vec(crate::support::path(), 12),
    ) {
        let limits = RunLimits { moved_blocks_max, ..RunLimits::default() };
        reported_losses::check_reported_losses(&RunIndex::new(limits), &steps, &queries)?;
    }

    /// An engine that never contradicts itself loses nothing.
    #[test]
    fn an_index_that_moves_few_blocks_drops_none_of_a_consistent_engine(
        moved_blocks_max in 0..6_usize,
        steps in vec(crate::support::consistent_step(), 1..60),
        queries in vec(crate::support::path(), 12),
    ) {
        let limits = RunLimits { moved_blocks_max, ..RunLimits::default() };
        let losses = reported_losses::check_reported_losses(&RunIndex::new(limits), &steps, &queries)?;
        prop_assert_eq!(losses, 0);
    }
}

/// The second rank of a tail was treated as counted, because the first one had begun the count of the run's ranks.
#[test]
fn a_tail_of_several_ranks_moves_from_a_run_that_begins_to_count_them() {
    let block = |sequence: u64, local: u64| Block { sequence: SequenceHash(sequence), local: LocalHash(local) };
    let stored = |dp_rank: u32, tier: Tier, parent: Option<u64>, blocks: &[Block]| {
        let rank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(dp_rank) };
        let parent = parent.map(SequenceHash);
        Step::Event(rank, BlockEvent::Stored { tier, parent, blocks: blocks.to_vec(), copies: 1 })
    };
    let chain = [block(1002, 2), block(5, 0), block(6, 2)];
    let steps = [
        stored(0, Tier::Device, None, &[block(1000, 0)]),
        stored(1, Tier::Device, None, &[block(1000, 0)]),
        stored(1, Tier::Disk, None, &[block(1002, 2)]),
        stored(0, Tier::Disk, None, &[block(1002, 2), block(7, 1)]),
        stored(1, Tier::Device, None, &chain),
        stored(1, Tier::Host, None, &[block(1000, 0)]),
        stored(0, Tier::Device, None, &chain),
        stored(0, Tier::Host, Some(5), &[block(8, 0)]),
    ];
    let queries = [vec![LocalHash(2), LocalHash(0), LocalHash(2)], vec![LocalHash(2), LocalHash(0), LocalHash(0)]];
    checks::check_index(|| Box::new(RunIndex::default()), &steps, &queries).expect("the oracle's answers");
}
