//! The report of a replay.

use std::time::Duration;

use flash_indexer_bench::{Latencies, Play, RESIDENT_UNAVAILABLE, short};
use flash_indexer_core::MemoryLimit;
use flash_indexer_designs::Design;

use flash_indexer_commands::output::percent;

/// Sums over a replay.
#[derive(Default)]
pub(super) struct ReplayReport {
    /// Latency of each query.
    pub(super) queries: Latencies,
    /// Time of applying all events.
    pub(super) ingest: Duration,
    /// Matched blocks of all ranks in all answers.
    pub(super) matched_blocks: u64,
    pub(super) matching_ranks: u64,
    /// Blocks that the serving workers reused from their caches.
    pub(super) reused_blocks: u64,
    /// Reused blocks that the index predicted.
    pub(super) predicted_blocks: u64,
    /// Statistics of the memory limit, if there is one.
    pub(super) bound: Option<MemoryLimit>,
    /// Growth of resident memory, in bytes.
    pub(super) grown_by: Option<u64>,
}

impl ReplayReport {
    pub(super) fn print(&self, design: Design, play: &Play) {
        let (stored, removed, queried) = (play.stored_blocks(), play.removed_blocks(), play.queried_blocks());
        let queries = self.queries.figures();
        let ingest_ns = self.ingest.as_nanos() as f64 / stored.max(1) as f64;
        let design = design.as_str();
        println!("{design}: {} requests ({} refused), {} events", play.requests.len(), play.refused, play.events.len());
        println!("blocks: {stored} stored, {removed} removed, {queried} queried");
        println!("ingest: {} ns per stored block, removals included", short(ingest_ns));
        println!(
            "query: {} ns mean, {} p50, {} p99, {} max",
            short(queries.mean_ns),
            short(queries.p50_ns),
            short(queries.p99_ns),
            short(queries.max_ns)
        );
        self.print_memory(play);
        println!("matches: {} workers, {} blocks of their prefixes", self.matching_ranks, self.matched_blocks);
        println!("hit rate {:.2}% ({} of {queried} blocks)", percent(self.reused_blocks, queried), self.reused_blocks);
        if let Some(bound) = &self.bound {
            self.print_bound(bound, queried);
        }
    }

    fn print_bound(&self, bound: &MemoryLimit, queried: u64) {
        println!(
            "memory: limit {} bytes, peak {} bytes, final {} bytes",
            bound.bytes_max, bound.bytes_highest, bound.bytes
        );
        println!("evicted: {} blocks of ranks; {} refused", bound.evicted_blocks, bound.refused_blocks);
        let (predicted, held) = (percent(self.predicted_blocks, queried), percent(self.reused_blocks, queried));
        println!("hit rate predicted by the index {predicted:.2}% ({:.2} points lost)", held - predicted);
    }

    fn print_memory(&self, play: &Play) {
        let Some(bytes) = self.grown_by else {
            println!("resident memory: {RESIDENT_UNAVAILABLE}");
            return;
        };
        let held = play.held_blocks();
        let per = |blocks: u64| short(bytes as f64 / blocks.max(1) as f64);
        println!(
            "resident memory: grew by {bytes} bytes, {} per unique block ({}), {} per held block ({})",
            per(held.distinct),
            held.distinct,
            per(held.held),
            held.held
        );
    }
}
