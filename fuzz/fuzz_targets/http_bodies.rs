//! Parses arbitrary bytes as requests with a prompt, and compares them with those of `serde_json`.
#![no_main]

#[allow(dead_code, reason = "for the service")]
#[path = "../../crates/server/src/http/prompt_request.rs"]
mod prompt_request;
#[path = "../../crates/server/src/http/request_tests.rs"]
mod request_tests;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| request_tests::play(bytes));
