//! Tests of the index through its public interface. One program, because linking each file separately takes longer than running it.

mod bounded;
mod bounded_readers;
mod continuations;
mod equivalence;
mod groups;
mod prefixes;
mod run_index;
mod run_index_bytes;
mod run_index_memory;
mod run_index_readers;
mod run_prefixes;
mod run_twins;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/top.rs"]
mod top;
