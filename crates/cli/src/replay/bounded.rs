//! Comparison of an index with a memory limit and one without, request by request.

use anyhow::{Result, ensure};
use flash_indexer_bench::Play;
use flash_indexer_core::{SharedIndex, Tier};

use flash_indexer_commands::output::percent;

/// Result of a comparison.
#[derive(Debug, Default)]
pub(super) struct BoundedComparison {
    /// Matched blocks of all workers in all answers of the bounded index.
    bounded_blocks: u64,
    /// Matched blocks of all workers in all answers of the unlimited index.
    unlimited_blocks: u64,
    /// Answers for a worker in which the bounded index has the longer match.
    too_high: u64,
    /// Requests after which the bounded index exceeded its limit.
    above_limit: u64,
}

impl BoundedComparison {
    /// Queries both indexes and applies the events to both. They must be empty.
    pub(super) fn of(play: &Play, bounded: &dyn SharedIndex, unlimited: &dyn SharedIndex) -> Self {
        let mut comparison = Self::default();
        for request in &play.requests {
            let (bounded_matches, matches) = (bounded.find(&request.query), unlimited.find(&request.query));
            let blocks = |found: &flash_indexer_core::RankMatch| u64::from(found.blocks[Tier::Device]);
            comparison.unlimited_blocks += matches.ranks.iter().map(blocks).sum::<u64>();
            for found in &bounded_matches.ranks {
                comparison.bounded_blocks += blocks(found);
                comparison.too_high += u64::from(blocks(found) > matches.get(found.rank).map_or(0, blocks));
            }
            for event in &play.events[request.events.clone()] {
                bounded.apply(event.rank, &event.event);
                unlimited.apply(event.rank, &event.event);
            }
            let is_above = bounded.memory_limit().is_none_or(|bound| bound.bytes > bound.bytes_max);
            comparison.above_limit += u64::from(is_above);
        }
        comparison
    }

    pub(super) fn check(&self) -> Result<()> {
        let Self { bounded_blocks, unlimited_blocks, too_high, above_limit } = self;
        println!(
            "compared with an unlimited index: {bounded_blocks} of {unlimited_blocks} blocks of all workers matched ({:.2}%), {too_high} \
             too high; above the limit after {above_limit} requests",
            percent(*bounded_blocks, *unlimited_blocks)
        );
        ensure!(
            too_high + above_limit == 0,
            "{too_high} matches of the bounded index were too high, and it exceeded its limit {above_limit} times"
        );
        Ok(())
    }
}
