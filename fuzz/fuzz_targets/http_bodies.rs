//! Parses arbitrary bytes as requests with a prompt, and compares them with those of `serde_json`.
#![no_main]

#[path = "../../crates/api/tests/it/request_checks.rs"]
mod request_checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| request_checks::play(bytes));
