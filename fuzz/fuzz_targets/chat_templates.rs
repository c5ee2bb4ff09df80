//! Renders arbitrary chats with arbitrary templates.
#![no_main]

#[path = "../../crates/chat-template/tests/rendering/any_bytes.rs"]
mod any_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| any_bytes::play(bytes));
