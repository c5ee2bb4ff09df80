//! The run index, whole or in shards, gives the answers of the oracle after every step of a random stream.

#[path = "support/equivalence.rs"]
mod equivalence;
#[path = "support/reported_losses.rs"]
mod reported_losses;
mod support;

use flash_indexer_core::ShardedIndex;
use flash_indexer_core::run::{RunIndex, RunLimits};
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #![proptest_config(support::cases(3000))]

    #[test]
    fn run_index_equals_the_oracle(steps in support::stream(40), queries in vec(support::path(), 12)) {
        equivalence::check_index(|| Box::<RunIndex>::default(), &steps, &queries)?;
    }

    #[test]
    fn a_sharded_index_equals_the_oracle(
        shards in 1_usize..=4,
        steps in support::stream(40),
        queries in vec(support::path(), 12),
    ) {
        equivalence::check_index(|| Box::new(ShardedIndex::new(shards, RunIndex::default)), &steps, &queries)?;
    }

    /// A few blocks are moved with an event. The others wait, or the rank is dropped; either is reported.
    #[test]
    fn an_index_that_moves_few_blocks_equals_the_oracle_or_reports_a_loss(
        moved_blocks_max in 0..6_usize,
        steps in support::stream(60),
        queries in vec(support::path(), 12),
    ) {
        let limits = RunLimits { moved_blocks_max, ..RunLimits::default() };
        reported_losses::check_reported_losses(&RunIndex::new(limits), &steps, &queries)?;
    }

    /// An engine that never contradicts itself loses nothing.
    #[test]
    fn an_index_that_moves_few_blocks_drops_none_of_a_consistent_engine(
        moved_blocks_max in 0..6_usize,
        steps in vec(support::consistent_step(), 1..60),
        queries in vec(support::path(), 12),
    ) {
        let limits = RunLimits { moved_blocks_max, ..RunLimits::default() };
        let losses = reported_losses::check_reported_losses(&RunIndex::new(limits), &steps, &queries)?;
        prop_assert_eq!(losses, 0);
    }
}
