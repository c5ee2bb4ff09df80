//! How much of what caches hold an index knows, where it has had to forget.

use flash_indexer_core::{LocalHash, SharedIndex, Tier, WorkerRank};

use crate::backend::WorkerEvent;
use crate::workload::Play;

/// Sums over the requests of a play.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownHits {
    /// Blocks asked for.
    pub queried_blocks: u64,
    /// Leading blocks that the serving worker had.
    pub held_blocks: u64,
    /// Of those, the ones that the index told of.
    pub known_blocks: u64,
    /// Requests for which it told of more than there was.
    pub too_high: u64,
}

impl KnownHits {
    /// Plays requests and events: `ask` says how many leading blocks of a query a rank holds, `tell` applies an
    /// event.
    pub fn of<I: ?Sized>(
        play: &Play,
        index: &mut I,
        mut ask: impl FnMut(&mut I, &[LocalHash], WorkerRank) -> u32,
        mut tell: impl FnMut(&mut I, &WorkerEvent),
    ) -> Self {
        let mut hits = Self::default();
        for request in &play.requests {
            let predicted = ask(index, &request.query, request.rank) as usize;
            hits.queried_blocks += request.query.len() as u64;
            hits.held_blocks += request.reused as u64;
            hits.known_blocks += predicted.min(request.reused) as u64;
            hits.too_high += u64::from(predicted > request.reused);
            play.events[request.events.clone()].iter().for_each(|event| tell(index, event));
        }
        hits
    }

    /// The same for one of our indexes.
    #[must_use]
    pub fn of_index(play: &Play, index: &dyn SharedIndex) -> Self {
        let mut index = index;
        let ask = |index: &mut &dyn SharedIndex, query: &[LocalHash], rank| {
            index.find(query).get(rank).map_or(0, |found| found.blocks[Tier::Device])
        };
        Self::of(play, &mut index, ask, |index, event| {
            index.apply(event.rank, &event.event);
        })
    }

    /// Blocks that were held and not known, in percent of those asked for.
    #[must_use]
    pub fn lost_percent(&self) -> f64 {
        (self.held_blocks - self.known_blocks) as f64 * 100.0 / self.queried_blocks.max(1) as f64
    }

    /// Blocks that were held, in percent of those asked for.
    #[must_use]
    pub fn hit_percent(&self) -> f64 {
        self.held_blocks as f64 * 100.0 / self.queried_blocks.max(1) as f64
    }
}
