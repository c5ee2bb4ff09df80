//! The index of a fleet inside a process, for C.
//!
//! `include/flash_index.h` is generated from this crate; its comments are the documentation of the functions.
//!
//! | file | role |
//! |---|---|
//! | `status` | status codes, error texts, and the guard against panics |
//! | `arguments` | checks and conversions of callers' arguments |
//! | `index` | creation, registrations, maintenance |
//! | `changes` | stores, copies, removals and clears |
//! | `messages` | messages of engines |
//! | `queries` | hashes, matches, sizes, trust |
//!
//! In addition to the two modules that ARCHITECTURE.md names, only this crate has unsafe code: it reads and writes the
//! memory of its callers. Each block states the header's requirements for callers.

mod arguments;
mod changes;
mod index;
mod messages;
mod queries;
mod status;

pub use changes::*;
pub use index::*;
pub use messages::*;
pub use queries::*;
pub use status::*;
