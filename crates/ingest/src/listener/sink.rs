//! The model that ingestion writes into, as a trait.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::groups::{GroupedIndex, RankEvent};
use flash_indexer_core::hashing::{BlockSize, TokenWindow};
use flash_indexer_core::{AppliedChanges, DpRank, WorkerId, WorkerRank};
use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_types::{ClearCause, EventContext, ModelKey, Ordinal};
use flash_indexer_wire::AdapterSalt;

use super::Listener;

/// An index with deferred work, which its writers run while they are idle.
pub trait MaintainedIndex: Send + Sync {
    /// Runs a bounded part of the deferred work of one shard. Returns whether any is left.
    fn maintain(&self, shard: usize) -> bool;
}

/// Stream that changes a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankOwner {
    /// The stream whose batch names the rank.
    SameStream,
    /// Another stream of the instance.
    OtherStream,
    /// None: the tenant has reached its limit of ranks.
    Refused,
}

/// A model of a tenant, as the listeners of its ranks see it: its index, history and metrics.
///
/// # Consistency
///
/// The methods that change blocks of a worker are called by the worker's writer only, one at a time and in the order of each
/// stream. The others may be called by any thread at any time.
pub trait ModelSink: MaintainedIndex {
    /// Model and tenant.
    fn key(&self) -> &ModelKey;

    /// Tokens in a block.
    fn block_size(&self) -> BlockSize;

    /// Number of the writer that applies the events of a worker.
    fn writer(&self, worker: WorkerId) -> usize;

    /// Metrics of the service.
    fn metrics(&self) -> &Arc<Metrics>;

    /// The current index. It is replaced after a change of it panicked.
    fn index(&self) -> Arc<GroupedIndex>;

    /// Applies one event to `index`, which [`ModelSink::index`] returned, and records it in the model's history with its
    /// `context`. After a panic the caller calls [`ModelSink::replace_failed_index`].
    fn write(&self, index: &GroupedIndex, rank: WorkerRank, event: &RankEvent, context: EventContext)
    -> AppliedChanges;

    /// Removes all blocks of a rank from `index`, under the rules of [`ModelSink::write`].
    fn forget(&self, index: &GroupedIndex, rank: WorkerRank, cause: ClearCause, now: Instant);

    /// The last event of the model's history.
    fn last_event(&self) -> Ordinal;

    /// Replaces an index in which a change panicked by an empty one, and restarts every stream of the model. The stream of
    /// the listener `culprit` requests no replay, which would return the same event.
    fn replace_failed_index(&self, failed: &Arc<GroupedIndex>, culprit: Option<u64>);

    /// Records that an engine hashes blocks with this token window, adapter and salt.
    fn record_variant(&self, window: TokenWindow, adapter_salt: &AdapterSalt);

    /// Adds a rank that a batch of the stream names and that is not registered. A rank of another stream of the instance is
    /// degraded instead, for as long as both streams are registered.
    fn list_rank(&self, listener: &Arc<Listener>, dp_rank: DpRank) -> RankOwner;

    /// Ranks of a stream, registered or added.
    fn ranks_of(&self, listener: &Listener) -> Vec<DpRank>;

    /// Removes all blocks of an instance.
    fn remove_worker(&self, worker: WorkerId);

    /// Generation of the index. Each replacement increments it; writes to an earlier generation are lost.
    fn generation(&self) -> u64;

    /// Whether a rank holds more blocks than its bounded index keeps.
    fn is_partial(&self, rank: WorkerRank) -> bool;

    /// Whether the model's tenant has reached its limit of blocks or bytes. The writer refuses further ones.
    fn is_full(&self) -> bool;
}
