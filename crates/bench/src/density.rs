//! Distribution of a fleet's stores and removals over time.

use flash_indexer_core::BlockEvent;

use crate::workload::Play;

/// Stored and removed blocks by worker and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventDensity {
    /// Length of a time bin, in milliseconds of the trace.
    pub bin_ms: u64,
    /// For each worker its bins in order of time.
    pub workers: Vec<Vec<DensityBin>>,
}

/// Blocks of one worker in one time bin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DensityBin {
    /// Blocks stored.
    pub stored: u64,
    /// Blocks removed.
    pub removed: u64,
}

impl EventDensity {
    /// Sorts a play's events into `bins` bins of equal length, at least one.
    #[must_use]
    pub fn of(play: &Play, workers: usize, bins: usize) -> Self {
        let bins = bins.max(1);
        let first_ms = play.requests.first().map_or(0, |request| request.at_ms);
        let last_ms = play.requests.last().map_or(0, |request| request.at_ms);
        let bin_ms = (last_ms.saturating_sub(first_ms) + 1).div_ceil(bins as u64);
        let mut density = vec![vec![DensityBin::default(); bins]; workers];
        for request in &play.requests {
            let at = (request.at_ms.saturating_sub(first_ms) / bin_ms) as usize;
            for event in &play.events[request.events.clone()] {
                let bin = &mut density[event.rank.worker.0 as usize][at];
                match &event.event {
                    BlockEvent::Stored { blocks, .. } => bin.stored += blocks.len() as u64,
                    BlockEvent::Removed { blocks, .. } => bin.removed += blocks.len() as u64,
                    BlockEvent::Copied { .. } | BlockEvent::Cleared => {}
                }
            }
        }
        Self { bin_ms, workers: density }
    }
}
