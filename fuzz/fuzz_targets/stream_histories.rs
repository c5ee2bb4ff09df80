//! Decodes arbitrary bytes as the history of an engine's stream, and compares the stream with the engine.
#![no_main]

#[path = "../../crates/wire/tests/it/stream/histories.rs"]
mod histories;
#[allow(dead_code, reason = "for the tests")]
#[path = "../../crates/wire/tests/it/stream/world.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| histories::play(bytes));
