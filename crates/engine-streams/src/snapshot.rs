//! Snapshots: their parts become one message. No answer shows a part of a snapshot as `exact`.

use std::sync::Arc;

use flash_indexer_proto::engine_events::{KvCacheEvent, KvEventBatch, KvSnapshotChunk, kv_cache_event};
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use flash_indexer_wire::LeftOutEvent;
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::reader;

/// Limit of a snapshot, in bytes of its parts.
pub(crate) const SNAPSHOT_BYTES_MAX: usize = 64 << 20;
/// Snapshots that are received at a time, of all engines.
pub(crate) const SNAPSHOTS_MAX: usize = 4;

/// Turns of snapshots. They bound the memory of all snapshots together.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotTurns(Arc<Semaphore>);

impl Default for SnapshotTurns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SNAPSHOTS_MAX)))
    }
}

/// A snapshot that is being received.
#[derive(Debug)]
pub(crate) struct Snapshot {
    events: Vec<KvCacheEvent>,
    /// Index of the next part.
    next: u32,
    bytes: usize,
    is_too_large: bool,
    _turn: OwnedSemaphorePermit,
}

/// State of a snapshot after a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Parts are missing.
    Partial,
    /// The payload of the message that replaces the rank's state.
    Whole(Vec<u8>),
    /// The part is not the next one.
    OutOfOrder,
}

impl Snapshot {
    /// A snapshot without parts. Waits while other engines' snapshots are received.
    pub(crate) async fn begin(SnapshotTurns(turns): &SnapshotTurns, metrics: &Metrics) -> Self {
        let turn = match Arc::clone(turns).try_acquire_owned() {
            Ok(turn) => turn,
            Err(_) => {
                metrics.limit_reached(Limit::Snapshots);
                Arc::clone(turns).acquire_owned().await.expect("it is never closed")
            }
        };
        Self { events: Vec::new(), next: 0, bytes: 0, is_too_large: false, _turn: turn }
    }

    /// Adds a part.
    pub(crate) fn add(&mut self, mut batch: KvEventBatch, part: KvSnapshotChunk, metrics: &Metrics) -> Progress {
        if part.index != self.next || part.index >= part.count {
            return Progress::OutOfOrder;
        }
        self.next += 1;
        self.bytes += batch.encoded_len();
        if self.bytes > SNAPSHOT_BYTES_MAX && !self.is_too_large {
            metrics.limit_reached(Limit::Snapshots);
            self.is_too_large = true;
            // The clear of the first part stays.
            self.events.retain(is_clear);
        }
        let events = std::mem::take(&mut batch.events);
        self.events.extend(events.into_iter().filter(|event| !self.is_too_large || is_clear(event)));
        if self.next < part.count {
            return Progress::Partial;
        }
        let mut losses = Vec::new();
        if part.unknown_before > 0 {
            let why = format!(
                "the server's snapshot lacks what {} earlier batches stored; restart the engine after its server",
                part.unknown_before
            );
            losses.push(LeftOutEvent { reason: "snapshot_incomplete", why });
        }
        if self.is_too_large {
            let why = format!("the server's snapshot has more than {SNAPSHOT_BYTES_MAX} bytes, and is left out");
            losses.push(LeftOutEvent { reason: "snapshot_too_large", why });
        }
        Progress::Whole(reader::message(&batch, &self.events, losses))
    }
}

fn is_clear(event: &KvCacheEvent) -> bool {
    matches!(event.data, Some(kv_cache_event::Data::Cleared(_)))
}
