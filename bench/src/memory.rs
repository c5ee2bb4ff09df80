//! The hit rate lost to a memory limit.

use anyhow::{Result, bail};
use flash_indexer_bench::{Play, PredictedHits};
use flash_indexer_core::SharedIndex;
use flash_indexer_core::run::{INDEX_BYTES_MIN, RunIndex, RunLimits};
use serde::{Deserialize, Serialize};

use crate::peers::{TWO_LEVEL_LRU, two_level_lru_hits};

/// Results of the memory part.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MemoryReport {
    /// Bytes that the index takes without eviction.
    pub(crate) bytes_needed: usize,
    /// Hits of the caches, in percent of the queried blocks.
    pub(crate) hit_percent: f64,
    pub(crate) lines: Vec<MemoryLine>,
}

/// One index under all limits.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MemoryLine {
    pub(crate) name: String,
    pub(crate) points: Vec<MemoryPoint>,
}

/// One limit.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct MemoryPoint {
    pub(crate) bytes_max: usize,
    /// Peak memory of the index; none if it is not known.
    pub(crate) bytes_highest: Option<usize>,
    /// Hits that the index did not predict, in percent of the queried blocks.
    pub(crate) lost_percent: f64,
}

/// Limits, as shares of the memory needed without eviction.
const SHARES: [f64; 9] = [1.0, 0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.025];

/// Memory of a distinct block in the re-implemented index, in bytes: *memory, 64 workers* of `measures.json`.
const TWO_LEVEL_LRU_BLOCK_BYTES: f64 = 453.0;

/// Plays the same requests under all limits.
pub(crate) fn measure(play: &Play, workers: usize) -> Result<MemoryReport> {
    let ample = RunIndex::bounded(RunLimits::default(), 64 << 30)?;
    let whole = PredictedHits::of_index(play, &ample);
    if whole.predicted_blocks != whole.held_blocks || whole.too_high > 0 {
        bail!("an index without eviction must predict every hit: {whole:?}");
    }
    let bytes_needed = ample.memory_limit().map_or(0, |bound| bound.bytes_highest);
    let mut run = MemoryLine { name: "run, bounded".to_owned(), points: Vec::new() };
    let mut two_level = MemoryLine { name: TWO_LEVEL_LRU.to_owned(), points: Vec::new() };
    for share in SHARES {
        let bytes_max = ((bytes_needed as f64 * share) as usize).max(INDEX_BYTES_MIN);
        eprintln!("memory: {} MiB at most", bytes_max >> 20);
        let index = RunIndex::bounded(RunLimits::default(), bytes_max)?;
        let hits = PredictedHits::of_index(play, &index);
        let bytes_highest = index.memory_limit().map(|bound| bound.bytes_highest);
        if hits.too_high > 0 || bytes_highest.is_none_or(|highest| highest > bytes_max) {
            bail!(
                "an index of {bytes_max} bytes took {bytes_highest:?} and predicted too much {} times",
                hits.too_high
            );
        }
        let lost_percent = hits.lost_percent();
        run.points.push(MemoryPoint { bytes_max, bytes_highest, lost_percent });
        let keys_max = (bytes_max as f64 / TWO_LEVEL_LRU_BLOCK_BYTES) as usize;
        let lost_percent = two_level_lru_hits(play, workers, keys_max).lost_percent();
        two_level.points.push(MemoryPoint { bytes_max, bytes_highest: None, lost_percent });
        eprintln!("  lost: {:.2} and {lost_percent:.2}", run.points.last().map_or(0.0, |point| point.lost_percent));
    }
    Ok(MemoryReport { bytes_needed, hit_percent: whole.hit_percent(), lines: vec![run, two_level] })
}
