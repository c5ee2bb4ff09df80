//! What it takes to have the store hold what ranks hold.

use std::time::Instant;

use anyhow::{Result, bail};
use flash_indexer_bench::WorkerEvent;
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{Block, BlockEvent, DpRank, LocalHash, Tier, WorkerId, WorkerRank};
use flash_indexer_redis::PublisherReport;
use flash_indexer_test_support::RedisNode;

use super::replica::{Listened, Replica};
use super::{LONG_PROMPT_BLOCKS, Rate};

/// Changes that may wait while events are told, less than would have a rank written anew.
const WAITING_MAX: usize = 1 << 15;
/// Events between two looks at what waits.
const EVENTS_PER_LOOK: usize = 64;

/// Writes ranks that hold something already, as a replica does that joins.
pub(super) fn write_whole(replica: &Replica, ranks: usize) -> Result<Rate> {
    let start = Instant::now();
    replica.wait_until_written(ranks)?;
    Ok(Rate::new(replica.published().written, start.elapsed()))
}

/// Writes changes while they are told, as fast as they are taken.
pub(super) fn write_changes(
    replica: &Replica,
    listened: &Listened,
    ranks: usize,
    events: &[WorkerEvent],
) -> Result<Rate> {
    let before = replica.published();
    let start = Instant::now();
    for events in events.chunks(EVENTS_PER_LOOK) {
        events.iter().for_each(|event| listened.apply(event));
        replica.wait_until("changes to be written", |report| report.waiting_changes < WAITING_MAX)?;
    }
    replica.wait_until_written(ranks)?;
    let elapsed = start.elapsed();
    let after = replica.published();
    lost_nothing(after)?;
    Ok(Rate::new(after.written - before.written, elapsed))
}

/// What was written once is not to be written again.
pub(super) fn lost_nothing(report: PublisherReport) -> Result<()> {
    match report.rewrites + report.overflows + report.failed_batches {
        0 => Ok(()),
        _ => bail!("the store was written anew, so this is no figure: {report:?}"),
    }
}

/// A prompt that no trace has.
pub(super) fn made_up(prompt: u64, blocks: usize) -> Vec<LocalHash> {
    (1..=blocks as u64).map(|block| LocalHash(prompt << 32 | block << 1 | 1)).collect()
}

/// One event of a rank that stores a whole prompt.
pub(super) fn stored(rank: WorkerRank, prompt: &[LocalHash]) -> WorkerEvent {
    let blocks = prompt.iter().zip(sequence_hashes(prompt));
    let blocks = blocks.map(|(&local, sequence)| Block { sequence, local }).collect();
    WorkerEvent { rank, event: BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 } }
}

/// A worker by its number.
pub(super) fn rank(number: usize) -> WorkerRank {
    WorkerRank { worker: WorkerId(number as u64), dp_rank: DpRank(0) }
}

/// How long it takes to write a long prompt that one rank has stored: the median, in microseconds. With the events.
pub(super) fn write_long_prompts(
    replica: &Replica,
    listened: &Listened,
    of: WorkerRank,
    rounds: usize,
) -> Result<(f64, Vec<WorkerEvent>)> {
    let (mut took, mut events) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let event = stored(of, &made_up(1 + round as u64, LONG_PROMPT_BLOCKS));
        let wanted = replica.published().written + LONG_PROMPT_BLOCKS as u64;
        let start = Instant::now();
        listened.apply(&event);
        replica.wait_until("a long prompt to be written", |report| report.written >= wanted)?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
        events.push(event);
    }
    took.sort_unstable_by(f64::total_cmp);
    Ok((took[took.len() / 2], events))
}

/// Bytes that the store has in use.
pub(super) fn used_memory(node: &RedisNode) -> Result<u64> {
    let info = node.try_command(&["INFO", "memory"])?;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    match line.and_then(|bytes| bytes.trim().parse().ok()) {
        Some(bytes) => Ok(bytes),
        None => bail!("redis-server does not tell its used_memory"),
    }
}
