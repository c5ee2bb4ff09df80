//! When a fleet stores, and when it removes.

use flash_indexer_core::BlockEvent;

use crate::workload::Play;

/// Stored and removed blocks by worker and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventDensity {
    /// Length of a time bin, in milliseconds of the trace.
    pub bin_ms: u64,
    /// For each worker and bin, blocks stored less blocks removed.
    pub net: Vec<Vec<i64>>,
}

impl EventDensity {
    /// Sorts a play's events into `bins` bins of equal length.
    #[must_use]
    pub fn of(play: &Play, workers: usize, bins: usize) -> Self {
        let first_ms = play.requests.first().map_or(0, |request| request.at_ms);
        let last_ms = play.requests.last().map_or(0, |request| request.at_ms);
        let bin_ms = (last_ms - first_ms + 1).div_ceil(bins.max(1) as u64).max(1);
        let mut net = vec![vec![0; bins.max(1)]; workers];
        for request in &play.requests {
            let bin = ((request.at_ms - first_ms) / bin_ms) as usize;
            for event in &play.events[request.events.clone()] {
                net[event.rank.worker.0 as usize][bin] += match &event.event {
                    BlockEvent::Stored { blocks, .. } => blocks.len() as i64,
                    BlockEvent::Removed { blocks, .. } => -(blocks.len() as i64),
                    BlockEvent::Copied { .. } | BlockEvent::Cleared => 0,
                };
            }
        }
        Self { bin_ms, net }
    }
}
