//! What ingestion writes into.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::groups::{GroupedIndex, RankEvent};
use flash_indexer_core::hashing::{BlockSize, TokenWindow};
use flash_indexer_core::{Applied, DpRank, WorkerId, WorkerRank};
use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_types::{ClearCause, ModelKey, Ordinal};
use flash_indexer_wire::AdapterSalt;

use super::listener::Listener;
use super::writer::Maintain;

/// A model of a tenant, as the listeners of its ranks see it: what is written into, and what is known of it.
///
/// # Consistency
///
/// The methods that change the index are called by the writer of the model only, one at a time and in the order of each
/// stream. The others may be called by any thread at any time.
pub trait ModelSink: Maintain {
    /// Model and tenant.
    fn key(&self) -> &ModelKey;

    /// Tokens in a block.
    fn block_size(&self) -> BlockSize;

    /// Which writer applies the model's events.
    fn writer(&self) -> usize;

    /// Metrics of the service.
    fn metrics(&self) -> &Arc<Metrics>;

    /// The index of now. It is replaced when a change of it panics.
    fn index(&self) -> Arc<GroupedIndex>;

    /// Applies one event to `index`, which [`ModelSink::index`] returned, and records it for explanations at the time
    /// `event_time`. After a panic the caller calls [`ModelSink::replace_failed_index`].
    fn write(&self, index: &GroupedIndex, rank: WorkerRank, event: &RankEvent, event_time: Instant) -> Applied;

    /// Removes everything that a rank holds from `index`, as [`ModelSink::write`].
    fn forget(&self, index: &GroupedIndex, rank: WorkerRank, cause: ClearCause, now: Instant);

    /// The last event of the model's history.
    fn last_event(&self) -> Ordinal;

    /// Replaces an index in which a change panicked by an empty one, and has every stream of the model start over: that
    /// of the listener `culprit` without a replay, which would bring the same event again.
    fn replace_failed_index(&self, failed: &Arc<GroupedIndex>, culprit: Option<u64>);

    /// Notes that an engine hashes blocks with this window, adapter and salt.
    fn note_variant(&self, window: TokenWindow, adapter_salt: &AdapterSalt);

    /// Lists a rank that only the batches of a stream name beside those registered with it.
    fn list_rank(&self, listener: &Arc<Listener>, dp_rank: DpRank);

    /// Ranks that are listed for a stream.
    fn ranks_of(&self, listener: &Listener) -> Vec<DpRank>;

    /// Removes everything that the ranks of an instance hold.
    fn remove_worker(&self, worker: WorkerId);

    /// Changes with each replacement of the index: what was written into the index of another generation is lost.
    fn generation(&self) -> u64;

    /// Whether a rank holds more than its bounded index has room for.
    fn is_partial(&self, rank: WorkerRank) -> bool;
}
