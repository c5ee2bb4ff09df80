//! An index within a bound of memory beside one without, request by request.

use anyhow::{Result, bail};
use flash_indexer_bench::Play;
use flash_indexer_core::{SharedIndex, Tier};

use crate::simulate::percent;

/// What a play of both came to.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Leading blocks of all workers in all answers.
    known_blocks: u64,
    held_blocks: u64,
    /// Workers in answers of which the bounded index claimed more.
    too_high: u64,
    /// Requests after which the bounded index took more than it may.
    above_bound: u64,
}

impl Compared {
    /// Asks and tells both, which must be empty.
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
            let is_above = bounded.memory_limit().is_none_or(|bound| bound.bytes > bound.bytes_max);
            compared.above_bound += u64::from(is_above);
        }
        compared
    }

    pub(super) fn check(&self) -> Result<()> {
        let Self { known_blocks, held_blocks, too_high, above_bound } = self;
        println!(
            "beside an index without a bound: {known_blocks} of {held_blocks} blocks of all workers known ({:.2}%), {too_high} \
             too high; above the bound after {above_bound} requests",
            percent(*known_blocks, *held_blocks)
        );
        match too_high + above_bound {
            0 => Ok(()),
            _ => bail!("the index claimed too much {too_high} times and took more than it may {above_bound} times"),
        }
    }
}
