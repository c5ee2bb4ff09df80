//! Reads of ranks at a known position of their streams.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use flash_indexer_core::{BlockEvent, DpRank, HeldReading, ReadingProgress, SharedIndex, WorkerRank, stored_events};
use flash_indexer_ingest::{DecoderStateDetail, Delivery, Listener, RankReader, ReadAt, ResumePoint};
use flash_indexer_types::InstanceId;

use super::Indexer;
use super::handover::listener;
use crate::model::Model;

/// Blocks of a rank that its writer reads before other instances take their turns: a millisecond.
const READ_BLOCKS_MAX: usize = 4_096;

/// A reading whose parts are calls of a function, which returns the result once it is complete.
struct Reader<F, T> {
    read_part: F,
    result: Option<T>,
    reply: Sender<(ResumePoint, T)>,
}

impl<F: FnMut() -> Option<T> + Send, T: Send> RankReader for Reader<F, T> {
    fn read_part(&mut self) -> ReadingProgress {
        self.result = (self.read_part)();
        if self.result.is_some() { ReadingProgress::Complete } else { ReadingProgress::More }
    }

    fn finish(self: Box<Self>, point: ResumePoint) {
        if let Some(result) = self.result {
            // The caller may have stopped waiting.
            let _ = self.reply.send((point, result));
        }
    }
}

impl Indexer {
    /// Calls `read_part` on the rank's writer between two messages, at a known position, until it returns a result. Other
    /// instances take their turns between two calls. None if the service stops, or if the result does not come within
    /// `patience`.
    pub(super) fn read<T: Send + 'static>(
        &self,
        listener: &Arc<Listener>,
        dp_rank: DpRank,
        (at, detail): (ReadAt, DecoderStateDetail),
        patience: Option<Duration>,
        read_part: impl FnMut() -> Option<T> + Send + 'static,
    ) -> Option<(ResumePoint, T)> {
        let (reply, answer) = bounded(1);
        let reader = Box::new(Reader { read_part, result: None, reply });
        self.decoders.deliver(listener, Delivery::Read { dp_rank, at, detail, reader });
        let deadline = patience.map(|patience| self.supervisor.clock().now() + patience);
        self.supervisor.wait(&answer, deadline).ok()
    }

    /// Stored events that recreate what a rank holds. None if its writer does not read them in time. A rank without a
    /// listener has no writer, and is read at once.
    pub(super) fn dump_in_parts(
        &self,
        model: &Arc<Model>,
        instance: &InstanceId,
        rank: WorkerRank,
    ) -> Option<Vec<BlockEvent>> {
        let dp_rank = rank.dp_rank;
        let Some(listener) = listener(model, instance, dp_rank) else { return Some(model.index().dump(rank)) };
        let now = (ReadAt::Now, DecoderStateDetail::Brief);
        // The worker of the rank may be of an earlier registration.
        let held = in_parts(Arc::clone(model), reading_of(model, WorkerRank { worker: listener.worker, dp_rank }));
        self.read(&listener, dp_rank, now, Some(EXPLANATION_WAIT_MAX), held)
            .map(|(_, held)| stored_events(held.into_blocks()))
    }
}

/// Longest wait for the blocks of a rank that are read for an explanation.
const EXPLANATION_WAIT_MAX: Duration = Duration::from_secs(5);

/// A reading of a rank that has not begun.
pub(super) fn reading_of(model: &Model, rank: WorkerRank) -> HeldReading {
    HeldReading::with_capacity(rank, model.index().size(rank).blocks)
}

/// A function that reads a part of a rank's blocks with each call, and returns the reading with the last one. The caller's thread, and
/// not the writer's, allocates its table, lists its blocks and frees it: each takes a time in proportion to the rank.
pub(super) fn in_parts(model: Arc<Model>, mut reading: HeldReading) -> impl FnMut() -> Option<HeldReading> + Send {
    let rank = reading.rank();
    move || match model.index().read_held(&mut reading, READ_BLOCKS_MAX) {
        ReadingProgress::More => None,
        ReadingProgress::Complete => Some(std::mem::replace(&mut reading, HeldReading::new(rank))),
    }
}
