//! Third-party indexes as contenders, each used as its documentation describes.
//!
//! Events and queries are converted before the timing. Some indexes keep state for each worker that only the writing
//! thread may access; there the lane owns it.

mod chain_index;
mod dynamo;
mod dynamo_radix_tree;
mod dynamo_service;
mod smg_radix_tree;
mod two_level_lru;

use std::collections::BTreeSet;

use flash_indexer_bench::{Contender, WorkerEvent};

pub(crate) use self::chain_index::ChainIndexPeer;
pub(crate) use self::dynamo::{CompressedTreePeer, PositionalPeer};
pub(crate) use self::dynamo_radix_tree::DynamoRadixTreePeer;
pub(crate) use self::dynamo_service::serve_dynamo;
pub(crate) use self::smg_radix_tree::SmgRadixTreePeer;
pub(crate) use self::two_level_lru::{TwoLevelLruPeer, two_level_lru_hits};

/// Names of peers, as tables have them.
pub(crate) const CHAIN_INDEX: &str = "kv-index ChainIndex";
pub(crate) const DYNAMO_COMPRESSED: &str = "dynamo compressed tree";
pub(crate) const DYNAMO_POSITIONAL: &str = "dynamo positional";
pub(crate) const DYNAMO_RADIX_TREE: &str = "dynamo radix tree";
pub(crate) const SMG_RADIX_TREE: &str = "smg-radix-tree";
pub(crate) const TWO_LEVEL_LRU: &str = "two-level LRU, our re-implementation";

/// Every peer.
pub(crate) fn all() -> Vec<Box<dyn Contender>> {
    vec![
        Box::new(ChainIndexPeer),
        Box::new(CompressedTreePeer),
        Box::new(PositionalPeer),
        Box::new(DynamoRadixTreePeer),
        Box::new(SmgRadixTreePeer),
        Box::new(TwoLevelLruPeer),
    ]
}

/// Number of the worker that published an event.
fn worker(event: &WorkerEvent) -> usize {
    event.rank.worker.0 as usize
}

/// Numbers of the workers that published the events.
fn workers(events: &[&WorkerEvent]) -> BTreeSet<usize> {
    events.iter().map(|event| worker(event)).collect()
}
