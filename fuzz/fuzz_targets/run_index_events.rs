//! Decodes arbitrary bytes as events and queries, and compares the run index with the oracle.
#![no_main]

#[path = "../../crates/core/tests/support/byte_stream.rs"]
mod byte_stream;
#[path = "../../crates/core/tests/support/top.rs"]
mod top;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| byte_stream::play(bytes));
