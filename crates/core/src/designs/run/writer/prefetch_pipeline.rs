//! Loads for events that come soon.
//!
//! Before an event changes anything it goes through a chain of loads, each of which says where the next one is: the line
//! of a name in the directory, its line of names, the run. An event of a single block is little else, and all of
//! it comes from memory. So whoever has the next events at hand tells of each some events before its turn, and the
//! chain goes one load further each time that another one is told of.

use super::Writer;
use super::runs::DomainId;
use crate::designs::run::published::layout::{HEADER_WORDS, Position, RunId};
use crate::designs::run::published::prefetch::prefetch;
use crate::{Block, BlockEvent, SequenceHash, WorkerRank};

/// Names that events start with, by how far they have come. They change nothing: a name may be gone, or mean something
/// else, when its turn comes.
#[derive(Debug, Default)]
pub(super) struct PrefetchPipeline {
    /// Their lines of the directory are asked for.
    in_directory: Option<Start>,
    /// Their lines of names as well.
    in_columns: Option<Start>,
    /// Their runs: the writer's side and the readers'.
    in_runs: [Option<RunId>; 2],
}

/// The names that are looked for first when an event is applied.
#[derive(Debug, Clone, Copy)]
struct Start {
    domain: DomainId,
    sequences: [Option<SequenceHash>; 2],
}

impl Writer {
    /// Asks memory for what the event will need, one step, and for the next step of those told of before.
    pub(in crate::designs::run) fn prefetch(&mut self, rank: WorkerRank, event: &BlockEvent) {
        let next = self.start_of(rank, event);
        let in_directory = std::mem::replace(&mut self.prefetch_pipeline.in_directory, next);
        let in_columns = std::mem::replace(&mut self.prefetch_pipeline.in_columns, in_directory);
        self.each_sequence(next, |writer, domain, sequence| {
            if let Some(domain) = writer.domains.find(domain) {
                domain.directory.prefetch(sequence);
            }
        });
        self.each_sequence(in_directory, |writer, domain, sequence| {
            if let Some(domain) = writer.domains.find(domain) {
                domain.directory.prefetch_sequences(&writer.sequences, sequence);
            }
        });
        let mut runs = [None; 2];
        self.each_sequence(in_columns, |writer, domain, sequence| {
            let found =
                writer.domains.find(domain).and_then(|domain| domain.directory.find(&writer.sequences, sequence));
            if let Some((position, _)) = found {
                writer.prefetch_position(position);
                runs = [Some(position.run), runs[0]];
            }
        });
        for run in std::mem::replace(&mut self.prefetch_pipeline.in_runs, runs).into_iter().flatten() {
            self.prefetch_exceptions(run);
        }
    }

    /// Asks for a block's content and for both sides of its run.
    pub(super) fn prefetch_position(&self, position: Position) {
        let record = self.published.run(position.run).record;
        prefetch(&record[0]);
        prefetch(&record[HEADER_WORDS + usize::from(position.offset)]);
        prefetch(self.runs.get(position.run));
    }

    /// Asks for the block that a chain goes on with behind a run, in the directory and as if it were in the run's latest child.
    pub(super) fn prefetch_next(&self, domain: DomainId, run: RunId, next: &Block) {
        self.domains.get(domain).directory.prefetch(next.sequence);
        if let Some(child) = self.runs.get(run).latest_child() {
            self.prefetch_position(Position { run: child, offset: 0 });
        }
    }

    /// The second step of [`Writer::prefetch_next`].
    pub(super) fn prefetch_sequences_of_next(&self, domain: DomainId, run: RunId, next: &Block) {
        self.domains.get(domain).directory.prefetch_sequences(&self.sequences, next.sequence);
        if let Some(child) = self.runs.get(run).latest_child() {
            self.prefetch_exceptions(child);
        }
    }

    /// Asks for what is special in a run whose state is at hand.
    pub(super) fn prefetch_exceptions(&self, run: RunId) {
        if let Some(exceptions) = &self.runs.get(run).exceptions {
            prefetch(&**exceptions);
        }
    }

    fn start_of(&self, rank: WorkerRank, event: &BlockEvent) -> Option<Start> {
        let sequences = match event {
            BlockEvent::Stored { parent, blocks, .. } => [*parent, blocks.first().map(|block| block.sequence)],
            BlockEvent::Copied { blocks, .. } | BlockEvent::Removed { blocks, .. } => [blocks.first().copied(), None],
            BlockEvent::Cleared => return None,
        };
        let slot = self.ranks.slot(rank)?;
        Some(Start { domain: self.ranks.get(slot).domain, sequences })
    }

    fn each_sequence(&self, start: Option<Start>, mut each: impl FnMut(&Self, DomainId, SequenceHash)) {
        let Some(Start { domain, sequences }) = start else { return };
        sequences.into_iter().flatten().for_each(|sequence| each(self, domain, sequence));
    }
}
