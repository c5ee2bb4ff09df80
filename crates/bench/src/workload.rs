//! Requests and their events, simulated in advance.

use std::ops::Range;

use flash_indexer_core::{BlockEvent, SequenceHash, WorkerRank};
use flash_indexer_sim::workload::HashedPrompt;
use flash_indexer_sim::{Fleet, FleetOptions, FleetStep, RequestTooLarge};
use rustc_hash::FxHashSet;

use crate::backend::WorkerEvent;

/// Requests and events of a fleet that serves a trace: from empty caches, and optionally again.
#[derive(Debug, Default)]
pub struct Workload {
    /// Workers of the fleet.
    pub workers: usize,
    /// The pass from empty caches.
    pub first: Play,
    /// The second pass over the same prompts; empty with one pass.
    pub again: Play,
}

/// One pass over a trace's requests.
#[derive(Debug, Default)]
pub struct Play {
    /// The requests, in the order of the trace.
    pub requests: Vec<PlayedRequest>,
    /// The events of all requests, in order.
    pub events: Vec<WorkerEvent>,
    /// Requests larger than a cache.
    pub refused: usize,
}

/// One request of a play, with the range of its events in the play.
pub type PlayedRequest = FleetStep<Range<usize>>;

impl Workload {
    /// Plays `prompts` through a fleet, `passes` (one or two) times.
    ///
    /// # Panics
    ///
    /// With zero workers.
    #[must_use]
    pub fn play<'a>(
        prompts: impl Iterator<Item = HashedPrompt<'a>> + Clone,
        options: &FleetOptions,
        passes: usize,
    ) -> Self {
        let mut fleet = Fleet::new(options.clone());
        let first = Play::of(prompts.clone(), &mut fleet);
        let again = if passes > 1 { Play::of(prompts, &mut fleet) } else { Play::default() };
        Self { workers: options.workers, first, again }
    }
}

impl Play {
    /// Serves `prompts` by a fleet.
    #[must_use]
    pub fn of<'a>(prompts: impl Iterator<Item = HashedPrompt<'a>>, fleet: &mut Fleet) -> Self {
        let mut play = Self::default();
        for prompt in prompts {
            match fleet.serve(prompt) {
                Err(RequestTooLarge { .. }) => play.refused += 1,
                Ok(FleetStep { at_ms, rank, query, reused, events }) => {
                    let first = play.events.len();
                    play.events.extend(events.into_iter().map(|event| WorkerEvent { rank, event }));
                    let events = first..play.events.len();
                    play.requests.push(PlayedRequest { at_ms, rank, query, reused, events });
                }
            }
        }
        play
    }

    /// Events of the workers that `choose` picks by their number, in order.
    pub fn events_of(&self, choose: impl Fn(u64) -> bool) -> Vec<&WorkerEvent> {
        self.events.iter().filter(|event| choose(event.rank.worker.0)).collect()
    }

    /// Blocks that the events store.
    #[must_use]
    pub fn stored_blocks(&self) -> u64 {
        let stored =
            |event: &WorkerEvent| if let BlockEvent::Stored { blocks, .. } = &event.event { blocks.len() } else { 0 };
        self.events.iter().map(|event| stored(event) as u64).sum()
    }

    /// Blocks that the events remove.
    #[must_use]
    pub fn removed_blocks(&self) -> u64 {
        let removed =
            |event: &WorkerEvent| if let BlockEvent::Removed { blocks, .. } = &event.event { blocks.len() } else { 0 };
        self.events.iter().map(|event| removed(event) as u64).sum()
    }

    /// Blocks of all queries.
    #[must_use]
    pub fn queried_blocks(&self) -> u64 {
        self.requests.iter().map(|request| request.query.len() as u64).sum()
    }

    /// Block operations: blocks stored, removed and queried.
    #[must_use]
    pub fn block_operations(&self) -> u64 {
        self.stored_blocks() + self.removed_blocks() + self.queried_blocks()
    }

    /// Blocks that are held after all events.
    #[must_use]
    pub fn held_blocks(&self) -> HeldBlocks {
        let mut held: FxHashSet<(WorkerRank, SequenceHash)> = FxHashSet::default();
        for WorkerEvent { rank, event } in &self.events {
            match event {
                BlockEvent::Stored { blocks, .. } => held.extend(blocks.iter().map(|block| (*rank, block.sequence))),
                BlockEvent::Removed { blocks, .. } => {
                    for &block in blocks {
                        held.remove(&(*rank, block));
                    }
                }
                BlockEvent::Copied { .. } | BlockEvent::Cleared => {}
            }
        }
        let distinct: FxHashSet<SequenceHash> = held.iter().map(|&(_, sequence)| sequence).collect();
        HeldBlocks { held: held.len() as u64, distinct: distinct.len() as u64 }
    }
}

/// Number of blocks that a fleet holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBlocks {
    /// Sum over all workers; a block that two workers hold is counted twice.
    pub held: u64,
    /// Distinct sequence hashes.
    pub distinct: u64,
}
