//! Events of engines over gRPC: the call `SubscribeKvEvents` of the servers that the SGLang gateway uses.
//!
//! A server streams the batches of an engine, each with the number that its rank gave it. [`EngineStreams`] converts them to
//! messages for decoders. Each registered rank has its own call on its own thread, and accepts the batches of its rank: a call
//! has one start number, and ranks number their batches independently.
//!
//! # Start numbers
//!
//! The start number of a call is the number of the last batch that the client has; 0 means no batch. A call after a lost
//! connection or a gap begins one batch earlier, so the server repeats the last batch. Its content shows whether the engine is
//! in the same epoch ([`ReplaySupport::OnReconnect`](flash_indexer_wire::ReplaySupport::OnReconnect)). A server without history begins with a
//! later batch, and a server that cannot continue returns an error; then the next call begins with 0, and the stream has a gap.
//!
//! | file | role |
//! |---|---|
//! | `position.rs` | start of a call, and the batches that continue the previous ones |
//! | `reader.rs` | a batch as a message |
//! | `snapshot.rs` | the parts of a snapshot as one message |
//! | `call.rs` | connections and calls |
//! | `stream_loop.rs` | the loop of one rank's thread |

mod call;
mod position;
mod reader;
mod snapshot;
mod stream_loop;
#[cfg(test)]
mod vector_tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use flash_indexer_ingest::{
    ConnectError, Decoders, Delivery, DeliveryGate, EventSource, Listener, OnRetired, RunningThread,
};
use flash_indexer_telemetry::supervision::{SupervisedThread, Supervisor, ThreadKind, Watch};
use flash_indexer_types::networks::EngineNetworks;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::call::Client;
use self::position::BatchPosition;
use self::snapshot::SnapshotTurns;
use self::stream_loop::StreamLoop;

/// Limit of the ranks whose events are streamed over gRPC. Each has a thread.
pub const STREAMED_RANKS_MAX: usize = 256;

/// Source of the events of ranks that are streamed over gRPC.
pub struct EngineStreams {
    ranks: Mutex<BTreeMap<u64, Rank>>,
    running: Arc<AtomicUsize>,
    turns: SnapshotTurns,
    networks: EngineNetworks,
    decoders: Arc<Decoders>,
    supervisor: Arc<Supervisor>,
}

/// An open listener.
struct Rank {
    gate: Arc<DeliveryGate>,
    /// Dropped to end the thread.
    _stop: oneshot::Sender<()>,
    thread: SupervisedThread,
}

impl EngineStreams {
    /// Connects to addresses in these networks. Threads are started as listeners are opened.
    pub fn new(decoders: Arc<Decoders>, networks: &EngineNetworks, supervisor: &Arc<Supervisor>) -> Self {
        Self {
            ranks: Mutex::default(),
            running: Arc::default(),
            turns: SnapshotTurns::default(),
            networks: networks.clone(),
            decoders,
            supervisor: Arc::clone(supervisor),
        }
    }
}

impl EventSource for EngineStreams {
    fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError> {
        let mut ranks = self.ranks.lock();
        let Some(running) = RunningThread::begin(&self.running, STREAMED_RANKS_MAX) else {
            return Err(ConnectError::TooManyStreams { max: STREAMED_RANKS_MAX });
        };
        let (id, gate) = (listener.id, Arc::new(DeliveryGate::default()));
        let (stop, stopped) = oneshot::channel();
        let stream = StreamLoop {
            client: Client::new(&listener.options.endpoint, listener.options.engine, self.networks.clone()),
            position: BatchPosition::default(),
            turns: self.turns.clone(),
            gate: Arc::clone(&gate),
            decoders: Arc::clone(&self.decoders),
            clock: self.supervisor.clock().clone(),
            metrics: Arc::clone(listener.model.metrics()),
            listener,
        };
        let run = move |watch: &Arc<Watch>| {
            let _running = running;
            stream.run(stopped, watch);
        };
        let thread = self.supervisor.spawn(ThreadKind::EngineStream, usize::try_from(id).ok(), run);
        let thread = thread.map_err(|error| ConnectError::Thread(error.to_string()))?;
        ranks.insert(id, Rank { gate, _stop: stop, thread });
        Ok(())
    }

    fn close(&self, listener: &Arc<Listener>, retired: OnRetired) -> bool {
        let Some(rank) = self.ranks.lock().remove(&listener.id) else { return false };
        rank.gate.close(|| self.decoders.deliver(listener, Delivery::Retire(retired)));
        true
    }

    fn stop(&self, deadline: Instant) {
        let ranks = std::mem::take(&mut *self.ranks.lock());
        // All of them end at the same time.
        let threads: Vec<_> = ranks.into_values().map(|rank| rank.thread).collect();
        for thread in threads {
            thread.join_by(deadline);
        }
    }
}
