//! Reads of ranks at a known position of their streams.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use flash_indexer_core::groups::{GroupChange, GroupPart, GroupReading, SecondaryGroup};
use flash_indexer_core::{BlockEvent, DpRank, HeldReading, ReadingProgress, SharedIndex, WorkerRank, stored_events};
use flash_indexer_ingest::{DecoderStateDetail, Delivery, Listener, RankReader, ReadAt, ResumePoint};
use flash_indexer_types::InstanceId;

use super::Indexer;
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

    /// Stored events that recreate the blocks of a rank. None if its writer does not read them in time. A rank without a
    /// listener has no writer, and is read at once.
    pub(super) fn dump_in_parts(
        &self,
        model: &Arc<Model>,
        instance: &InstanceId,
        rank: WorkerRank,
    ) -> Option<Vec<BlockEvent>> {
        let dp_rank = rank.dp_rank;
        let Some(listener) = model.listener(instance, dp_rank) else { return Some(model.index().dump(rank)) };
        let now = (ReadAt::Now, DecoderStateDetail::Brief);
        // The worker of the rank may be of an earlier registration.
        let read_part = in_parts(Arc::clone(model), reading_of(model, WorkerRank { worker: listener.worker, dp_rank }));
        self.read(&listener, dp_rank, now, Some(EXPLANATION_WAIT_MAX), read_part)
            .map(|(_, read)| stored_events(read.held.into_blocks()))
    }
}

/// Longest wait for the blocks of a rank that are read for an explanation.
const EXPLANATION_WAIT_MAX: Duration = Duration::from_secs(5);

/// A reading of a rank that has not begun.
pub(super) fn reading_of(model: &Model, rank: WorkerRank) -> HeldReading {
    HeldReading::with_capacity(rank, model.index().size(rank).blocks)
}

/// Blocks of a rank that its writer has read.
pub(super) struct RankReading {
    /// Blocks of the primary group.
    pub(super) held: HeldReading,
    /// The parts of each secondary group, as they were read.
    secondary: Vec<(SecondaryGroup, Vec<GroupPart>)>,
}

impl RankReading {
    /// Stored events that recreate the secondary groups, including empty ones. Costs as much as their blocks.
    pub(super) fn secondary_stores(&self) -> Vec<GroupChange> {
        let stores = |(group, parts): &(SecondaryGroup, Vec<GroupPart>)| {
            let blocks = parts.iter().flat_map(|part| &part.blocks);
            group.stores_of(blocks, parts.iter().flat_map(|part| part.links.iter().copied()))
        };
        self.secondary.iter().flat_map(stores).collect()
    }
}

/// A function that reads a part of a rank's blocks with each call, and returns them with the last one. The caller's thread, and not
/// the writer's, allocates the table of the primary group, lists its blocks and frees it: each takes time in proportion to the rank's size.
pub(super) fn in_parts(model: Arc<Model>, mut reading: HeldReading) -> impl FnMut() -> Option<RankReading> + Send {
    let rank = reading.rank();
    // Groups that remain to be read, once the primary one is complete.
    let mut groups: Option<Vec<GroupReading>> = None;
    let mut secondary: Vec<(SecondaryGroup, Vec<GroupPart>)> = Vec::new();
    move || {
        let index = model.index();
        let Some(groups) = &mut groups else {
            if index.read_held(&mut reading, READ_BLOCKS_MAX) == ReadingProgress::Complete {
                groups = Some(index.secondary_groups(rank).into_iter().map(GroupReading::new).collect());
            }
            return None;
        };
        let Some(group) = groups.last_mut() else {
            let held = std::mem::replace(&mut reading, HeldReading::new(rank));
            return Some(RankReading { held, secondary: std::mem::take(&mut secondary) });
        };
        let part = index.read_group(rank, group, READ_BLOCKS_MAX);
        let progress = part.progress;
        match secondary.last_mut().filter(|(last, _)| last.id == group.group().id) {
            Some((_, parts)) => parts.push(part),
            None => secondary.push((group.group(), vec![part])),
        }
        if progress == ReadingProgress::Complete {
            groups.pop();
        }
        None
    }
}
