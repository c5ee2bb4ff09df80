//! A relay next to an engine: it follows the engine's events, replaces tokens by local hashes, and publishes the events under
//! the same sequence numbers. Tokens, salts, and identities of multimodal items never leave the engine's host.
//!
//! The service follows a relay as it follows an engine. So the relay behaves like an engine: it closes its subscribers' connections
//! when it loses the engine, it answers replays, and an event that it cannot hash is left out visibly, which degrades the rank.
//!
//! | file | role |
//! |---|---|
//! | `hasher.rs` | [`Hasher`]: an engine's batch to a batch without tokens; no I/O |
//! | `upstream.rs` | the connection to the engine: live messages and replays |
//! | `run.rs` | the relay itself |

mod hasher;
mod run;
mod upstream;

pub use hasher::{Hasher, HasherOptions};
pub use run::{RelayError, RelayOptions, run};
