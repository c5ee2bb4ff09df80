//! Tests of decoding and translation through the public interface. One program, because linking each file separately takes longer than
//! running it.

mod chain_hash;
mod event_limits;
mod event_vectors;
mod finer_groups;
mod hashed_tokens;
mod llm_d_vectors;
#[path = "../support/messages.rs"]
mod messages;
mod pulled;
mod recorded;
mod shared_caches;
mod stream;
mod tolerance;
mod translation;
