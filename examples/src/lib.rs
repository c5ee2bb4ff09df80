//! Small programs that use Flash Indexer. Run one with `cargo run -p flash-indexer-examples --example NAME`.
//!
//! | example | what it shows |
//! |---|---|
//! | `embed` | a router with the run index inside the process |
//! | `publish` | an engine that publishes its cache events to the service |
//! | `route` | a router that asks the service which instance holds the longest prefix |
