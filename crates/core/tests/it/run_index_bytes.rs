//! The run index under streams of random bytes: the same as the fuzz target `run_index_events`, without
//! a fuzzer.

#[path = "../support/byte_stream.rs"]
mod byte_stream;

use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #![proptest_config(crate::support::cases(300))]

    #[test]
    fn the_run_index_equals_the_oracle_for_any_bytes(bytes in vec(any::<u8>(), 0..1_200)) {
        byte_stream::play(&bytes);
    }
}
