//! Loads for events that come soon.
//!
//! Before an event changes anything it goes through a chain of loads, each of which says where the next one is: the line
//! of a name in the directory, its line of names, the run. An event of a single block is little else, and all of
//! it comes from memory. So whoever has the next events at hand tells of each some events before its turn, and the
//! chain goes one load further each time that another one is told of.

use super::Writer;
use super::runs::DomainId;
use crate::run::published::layout::{HEADER_WORDS, Place, RunId};
use crate::run::published::prefetch::prefetch;
use crate::{Block, BlockEvent, SequenceHash, WorkerRank};

/// Names that events start with, by how far they have come. They change nothing: a name may be gone, or mean something
/// else, when its turn comes.
#[derive(Debug, Default)]
pub(super) struct Upcoming {
    /// Their lines of the directory are asked for.
    in_directory: Option<Start>,
    /// Their lines of names as well.
    in_names: Option<Start>,
    /// Their runs: the writer's side and the readers'.
    in_runs: [Option<RunId>; 2],
}

/// The names that are looked for first when an event is applied.
#[derive(Debug, Clone, Copy)]
struct Start {
    domain: DomainId,
    names: [Option<SequenceHash>; 2],
}

impl Writer {
    /// Asks memory for what the event will need, one step, and for the next step of those told of before.
    pub(in crate::run) fn prefetch(&mut self, rank: WorkerRank, event: &BlockEvent) {
        let next = self.start_of(rank, event);
        let in_directory = std::mem::replace(&mut self.upcoming.in_directory, next);
        let in_names = std::mem::replace(&mut self.upcoming.in_names, in_directory);
        self.each_name(next, |writer, domain, name| {
            if let Some(domain) = writer.domains.find(domain) {
                domain.directory.prefetch(name);
            }
        });
        self.each_name(in_directory, |writer, domain, name| {
            if let Some(domain) = writer.domains.find(domain) {
                domain.directory.prefetch_names(&writer.names, name);
            }
        });
        let mut runs = [None; 2];
        self.each_name(in_names, |writer, domain, name| {
            let found = writer.domains.find(domain).and_then(|domain| domain.directory.find(&writer.names, name));
            if let Some((place, _)) = found {
                writer.prefetch_place(place);
                runs = [Some(place.run), runs[0]];
            }
        });
        for run in std::mem::replace(&mut self.upcoming.in_runs, runs).into_iter().flatten() {
            self.prefetch_exceptions(run);
        }
    }

    /// Asks for a block's content and for both sides of its run.
    pub(super) fn prefetch_place(&self, place: Place) {
        let record = self.published.run(place.run).record;
        prefetch(&record[0]);
        prefetch(&record[HEADER_WORDS + usize::from(place.offset)]);
        prefetch(self.runs.get(place.run));
    }

    /// Asks for the block that a chain goes on with behind a run, in the directory and as if it were in the run's latest child.
    pub(super) fn prefetch_next(&self, domain: DomainId, run: RunId, next: &Block) {
        self.domains.get(domain).directory.prefetch(next.sequence);
        if let Some(child) = self.runs.get(run).latest_child() {
            self.prefetch_place(Place { run: child, offset: 0 });
        }
    }

    /// The second step of [`Writer::prefetch_next`].
    pub(super) fn prefetch_names_of_next(&self, domain: DomainId, run: RunId, next: &Block) {
        self.domains.get(domain).directory.prefetch_names(&self.names, next.sequence);
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
        let names = match event {
            BlockEvent::Stored { parent, blocks, .. } => [*parent, blocks.first().map(|block| block.sequence)],
            BlockEvent::Copied { blocks, .. } | BlockEvent::Removed { blocks, .. } => [blocks.first().copied(), None],
            BlockEvent::Cleared => return None,
        };
        let slot = self.ranks.slot(rank)?;
        Some(Start { domain: self.ranks.get(slot).domain, names })
    }

    fn each_name(&self, start: Option<Start>, mut each: impl FnMut(&Self, DomainId, SequenceHash)) {
        let Some(Start { domain, names }) = start else { return };
        names.into_iter().flatten().for_each(|name| each(self, domain, name));
    }
}
