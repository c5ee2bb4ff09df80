//! Comparison of an index with a memory limit and one without, request by request.

use anyhow::{Result, bail};
use flash_indexer_bench::Play;
use flash_indexer_core::{SharedIndex, Tier};

use crate::simulate::percent;

/// Result of a comparison.
#[derive(Debug, Default)]
pub(super) struct BoundedComparison {
    /// Matched blocks of all workers in all answers of the bounded index.
    known_blocks: u64,
    /// Matched blocks of all workers in all answers of the unlimited index.
    held_blocks: u64,
    /// Answers for a worker in which the bounded index has the longer match.
    too_high: u64,
    /// Requests after which the bounded index exceeded its limit.
    above_bound: u64,
}

impl BoundedComparison {
    /// Queries both indexes and applies the events to both. They must be empty.
    pub(super) fn of(play: &Play, bounded: &dyn SharedIndex, whole: &dyn SharedIndex) -> Self {
        let mut compared = Self::default();
        for request in &play.requests {
            let (known, held) = (bounded.find(&request.query), whole.find(&request.query));
            let blocks = |found: &flash_indexer_core::RankMatch| u64::from(found.blocks[Tier::Device]);
            compared.held_blocks += held.ranks.iter().map(blocks).sum::<u64>();
            for found in &known.ranks {
                compared.known_blocks += blocks(found);
                compared.too_high += u64::from(blocks(found) > held.get(found.rank).map_or(0, blocks));
            }
            for event in &play.events[request.events.clone()] {
                bounded.apply(event.rank, &event.event);
                whole.apply(event.rank, &event.event);
            }
            let is_above = bounded.memory_bound().is_none_or(|bound| bound.bytes > bound.bytes_max);
            compared.above_bound += u64::from(is_above);
        }
        compared
    }

    pub(super) fn check(&self) -> Result<()> {
        let Self { known_blocks, held_blocks, too_high, above_bound } = self;
        println!(
            "compared with an unlimited index: {known_blocks} of {held_blocks} blocks of all workers matched ({:.2}%), {too_high} \
             too high; above the limit after {above_bound} requests",
            percent(*known_blocks, *held_blocks)
        );
        match too_high + above_bound {
            0 => Ok(()),
            _ => bail!(
                "{too_high} matches of the bounded index were too high, and it exceeded its limit {above_bound} times"
            ),
        }
    }
}
