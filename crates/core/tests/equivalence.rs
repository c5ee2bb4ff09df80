//! The run index, whole or in shards, gives the answers of the oracle after every step of a random stream.

#[path = "support/equivalence.rs"]
mod equivalence;
mod support;

use flash_indexer_core::ShardedIndex;
use flash_indexer_core::run::RunIndex;
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
}
