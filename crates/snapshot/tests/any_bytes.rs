//! Dumps of random bytes: the same as the fuzz target `dumps`, without a fuzzer.

#[path = "support/dumps.rs"]
mod dumps;

use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn dumps_of_any_bytes_are_written_and_read_as_they_should_be(bytes in vec(any::<u8>(), 0..400)) {
        dumps::play(&bytes);
    }
}
