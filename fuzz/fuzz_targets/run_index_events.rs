//! Any bytes as events and queries: the run index answers as the oracle does, whatever they are.
#![no_main]

#[path = "../../crates/core/tests/support/byte_stream.rs"]
mod byte_stream;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| byte_stream::play(bytes));
