//! The `flash-indexer` command.
fn main() {}
