//! Cache hits that an index predicts, for indexes that evict.

use flash_indexer_core::{LocalHash, SharedIndex, Tier, WorkerRank};

use crate::backend::WorkerEvent;
use crate::workload::Play;

/// Sums over the requests of a play.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PredictedHits {
    /// Queried blocks.
    pub queried_blocks: u64,
    /// Leading blocks that the serving worker held.
    pub held_blocks: u64,
    /// Held blocks that the index predicted.
    pub predicted_blocks: u64,
    /// Requests with more predicted than held blocks.
    pub too_high: u64,
}

impl PredictedHits {
    /// Plays requests and events: `query` returns the number of leading blocks that a rank holds, `apply` applies an
    /// event.
    pub fn of<I: ?Sized>(
        play: &Play,
        index: &mut I,
        mut query: impl FnMut(&mut I, &[LocalHash], WorkerRank) -> u32,
        mut apply: impl FnMut(&mut I, &WorkerEvent),
    ) -> Self {
        let mut hits = Self::default();
        for request in &play.requests {
            let predicted = query(index, &request.query, request.rank) as usize;
            hits.queried_blocks += request.query.len() as u64;
            hits.held_blocks += request.reused as u64;
            hits.predicted_blocks += predicted.min(request.reused) as u64;
            hits.too_high += u64::from(predicted > request.reused);
            play.events[request.events.clone()].iter().for_each(|event| apply(index, event));
        }
        hits
    }

    /// Plays requests and events into one of this project's indexes.
    #[must_use]
    pub fn of_index(play: &Play, index: &dyn SharedIndex) -> Self {
        let mut index = index;
        let query = |index: &mut &dyn SharedIndex, query: &[LocalHash], rank| {
            index.find(query).get(rank).map_or(0, |found| found.blocks[Tier::Device])
        };
        Self::of(play, &mut index, query, |index, event| {
            index.apply(event.rank, &event.event);
        })
    }

    /// Held blocks that were not predicted, in percent of the queried blocks.
    #[must_use]
    pub fn lost_percent(&self) -> f64 {
        (self.held_blocks - self.predicted_blocks) as f64 * 100.0 / self.queried_blocks.max(1) as f64
    }

    /// Held blocks, in percent of the queried blocks.
    #[must_use]
    pub fn hit_percent(&self) -> f64 {
        self.held_blocks as f64 * 100.0 / self.queried_blocks.max(1) as f64
    }
}
