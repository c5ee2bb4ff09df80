//! The hash key of a serving process. A separate program, because a process has one key for its whole lifetime.

use flash_indexer_core::keyed::HashKey;
use flash_indexer_server::{Indexer, IndexerOptions};

#[test]
fn a_service_has_a_secret_key() {
    let _indexer = Indexer::start(IndexerOptions::default()).expect("threads start");
    assert_ne!(HashKey::of_process(), HashKey::FIXED, "clients know that one");
    assert!(HashKey::FIXED.set_for_process().is_err(), "it stays for the life of the process");
}
