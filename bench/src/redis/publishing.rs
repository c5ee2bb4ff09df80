//! Time of writing ranks to the store.

use std::time::Instant;

use anyhow::{Result, bail};
use flash_indexer_bench::WorkerEvent;
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{Block, BlockEvent, DpRank, LocalHash, Tier, WorkerId, WorkerRank};
use flash_indexer_redis::PublisherReport;
use flash_indexer_test_support::RedisNode;

use super::replica::{LocalRanks, Replica};
use super::{LONG_PROMPT_BLOCKS, Rate};

/// Changes that may wait for the publisher, fewer than the limit at which it rewrites a rank.
const WAITING_MAX: usize = 1 << 15;
/// Events between two checks of the waiting changes.
const EVENTS_PER_CHECK: usize = 64;

/// Writes ranks that hold blocks already, as a joining replica does.
pub(super) fn write_whole(replica: &Replica, ranks: usize) -> Result<Rate> {
    let start = Instant::now();
    replica.wait_until_written(ranks)?;
    Ok(Rate::new(replica.published().written, start.elapsed()))
}

/// Applies events at the rate at which the publisher writes their changes.
pub(super) fn write_changes(
    replica: &Replica,
    local_ranks: &LocalRanks,
    ranks: usize,
    events: &[WorkerEvent],
) -> Result<Rate> {
    let before = replica.published();
    let start = Instant::now();
    for events in events.chunks(EVENTS_PER_CHECK) {
        events.iter().for_each(|event| local_ranks.apply(event));
        replica.wait_until("changes to be written", |report| report.waiting_changes < WAITING_MAX)?;
    }
    replica.wait_until_written(ranks)?;
    let elapsed = start.elapsed();
    let after = replica.published();
    lost_nothing(after)?;
    Ok(Rate::new(after.written - before.written, elapsed))
}

/// Fails if the publisher rewrote a rank, which would distort the figures.
pub(super) fn lost_nothing(report: PublisherReport) -> Result<()> {
    match report.rewrites + report.overflows() + report.failed_batches {
        0 => Ok(()),
        _ => bail!("ranks were rewritten, so the figures are invalid: {report:?}"),
    }
}

/// A synthetic prompt, which no trace contains.
pub(super) fn synthetic(prompt: u64, blocks: usize) -> Vec<LocalHash> {
    (1..=blocks as u64).map(|block| LocalHash(prompt << 32 | block << 1 | 1)).collect()
}

/// An event of a rank that stores a whole prompt.
pub(super) fn stored(rank: WorkerRank, prompt: &[LocalHash]) -> WorkerEvent {
    let blocks = prompt.iter().zip(sequence_hashes(prompt));
    let blocks = blocks.map(|(&local, sequence)| Block { sequence, local }).collect();
    WorkerEvent { rank, event: BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 } }
}

/// A worker by its number.
pub(super) fn rank(number: usize) -> WorkerRank {
    WorkerRank { worker: WorkerId(number as u64), dp_rank: DpRank(0) }
}

/// Median time of writing a long prompt that one rank has stored, in microseconds, and the events.
pub(super) fn write_long_prompts(
    replica: &Replica,
    local_ranks: &LocalRanks,
    of: WorkerRank,
    rounds: usize,
) -> Result<(f64, Vec<WorkerEvent>)> {
    let (mut took, mut events) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let event = stored(of, &synthetic(1 + round as u64, LONG_PROMPT_BLOCKS));
        let wanted = replica.published().written + LONG_PROMPT_BLOCKS as u64;
        let start = Instant::now();
        local_ranks.apply(&event);
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
        None => bail!("INFO of redis-server has no used_memory"),
    }
}
