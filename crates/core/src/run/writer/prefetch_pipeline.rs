//! Prefetch pipeline for upcoming events.
//!
//! Before an event changes anything, it needs a chain of loads, each of which gives the address of the next: the
//! directory line of a sequence hash, its column line, the run. For an event of a single block that is most of the
//! work, and all of it comes from memory. So a caller announces each event some events before its turn, and each call
//! advances the announced events by one load.

use super::Writer;
use super::runs::DomainId;
use crate::run::published::layout::{HEADER_WORDS, RunId, RunPosition};
use crate::run::published::prefetch::prefetch;
use crate::{Block, BlockEvent, SequenceHash, WorkerRank};

/// First sequence hashes of announced events, by stage. Announcing changes nothing: a hash may be removed or
/// redefined before its turn.
#[derive(Debug, Default)]
pub(super) struct PrefetchPipeline {
    /// Directory lines are prefetched.
    in_directory: Option<FirstHashes>,
    /// Column lines are prefetched.
    in_columns: Option<FirstHashes>,
    /// Runs whose state and record are prefetched.
    in_runs: [Option<RunId>; 2],
}

/// The sequence hashes that are looked up first when an event is applied.
#[derive(Debug, Clone, Copy)]
struct FirstHashes {
    domain: DomainId,
    sequences: [Option<SequenceHash>; 2],
}

impl Writer {
    /// Prefetches the first load of the event, and the next load of each event announced before.
    pub(in crate::run) fn prefetch(&mut self, rank: WorkerRank, event: &BlockEvent) {
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

    /// Prefetches a block's local hash, and the state and header of its run.
    pub(super) fn prefetch_position(&self, position: RunPosition) {
        let record = self.published.run(position.run).record;
        prefetch(&record[0]);
        prefetch(&record[HEADER_WORDS + usize::from(position.offset)]);
        prefetch(self.runs.get(position.run));
    }

    /// Prefetches the block with which a chain continues after a run: in the directory, and in the run's latest child as
    /// the likely place.
    pub(super) fn prefetch_next(&self, domain: DomainId, run: RunId, next: &Block) {
        self.domains.get(domain).directory.prefetch(next.sequence);
        if let Some(child) = self.runs.get(run).latest_child() {
            self.prefetch_position(RunPosition { run: child, offset: 0 });
        }
    }

    /// The second stage of [`Writer::prefetch_next`].
    pub(super) fn prefetch_sequences_of_next(&self, domain: DomainId, run: RunId, next: &Block) {
        self.domains.get(domain).directory.prefetch_sequences(&self.sequences, next.sequence);
        if let Some(child) = self.runs.get(run).latest_child() {
            self.prefetch_exceptions(child);
        }
    }

    /// Prefetches the exceptions of a run whose state is in the cache.
    pub(super) fn prefetch_exceptions(&self, run: RunId) {
        if let Some(exceptions) = &self.runs.get(run).exceptions {
            prefetch(&**exceptions);
        }
    }

    fn start_of(&self, rank: WorkerRank, event: &BlockEvent) -> Option<FirstHashes> {
        let sequences = match event {
            BlockEvent::Stored { parent, blocks, .. } => [*parent, blocks.first().map(|block| block.sequence)],
            BlockEvent::Copied { blocks, .. } | BlockEvent::Removed { blocks, .. } => [blocks.first().copied(), None],
            BlockEvent::Cleared => return None,
        };
        let slot = self.ranks.slot(rank)?;
        Some(FirstHashes { domain: self.ranks.get(slot).domain, sequences })
    }

    fn each_sequence(&self, start: Option<FirstHashes>, mut each: impl FnMut(&Self, DomainId, SequenceHash)) {
        let Some(FirstHashes { domain, sequences }) = start else { return };
        sequences.into_iter().flatten().for_each(|sequence| each(self, domain, sequence));
    }
}
