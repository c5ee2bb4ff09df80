//! Decodes arbitrary bytes as messages of engines: batches, pulled responses and frames.
#![no_main]

#[path = "../../crates/wire/tests/support/messages.rs"]
mod messages;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| messages::play(bytes));
