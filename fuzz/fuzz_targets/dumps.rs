//! Reads arbitrary bytes as dumps, and writes, damages and reads dumps of arbitrary ranks.
#![no_main]

#[path = "../../crates/snapshot/tests/support/dumps.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| support::play(bytes));
