//! Memory that the run index keeps after blocks are removed: it does not grow.

use flash_indexer_core::run::{RunIndex, RunLimits, RunMemory};
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, RemovedCopies, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank,
};

const WORKERS: u64 = 6;
const CHAINS: u64 = 20;
const BLOCKS: u64 = 150;
const GENERATIONS: u64 = 30;

fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) }
}

/// A chain of unique content, except that all workers have those of worker zero. The last worker has a private hash
/// seed.
fn chain(worker: u64, number: u64, blocks: u64) -> Vec<Block> {
    let seed = if worker == WORKERS - 1 { 1 << 63 } else { 0 };
    let block = |at: u64| {
        let content = (number << 20 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Block { sequence: SequenceHash(content ^ seed), local: LocalHash(content.rotate_left(32)) }
    };
    (0..blocks).map(block).collect()
}

/// The chains of a worker in a generation: half are its own, half are shared by all workers.
fn chains(worker: u64, generation: u64) -> Vec<Vec<Block>> {
    let number = |at: u64| {
        let owner = if at.is_multiple_of(2) { 0 } else { worker + 1 };
        (generation * CHAINS + at) * (WORKERS + 1) + owner
    };
    (0..CHAINS).map(|at| chain(worker, number(at), BLOCKS)).collect()
}

/// In pieces, as an engine computes a prompt.
fn store(index: &RunIndex, worker: u64, blocks: &[Block]) {
    let mut parent = None;
    for blocks in blocks.chunks(64) {
        let event = BlockEvent::Stored { tier: Tier::Device, parent, blocks: blocks.to_vec(), copies: 1 };
        index.apply(rank(worker), &event);
        parent = blocks.last().map(|block| block.sequence);
    }
}

fn remove(index: &RunIndex, worker: u64, blocks: &[Block]) {
    let blocks = blocks.iter().rev().map(|block| block.sequence).collect();
    index.apply(rank(worker), &BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All });
}

/// Removes a whole generation: from the ends, some of it with a gap first, and one worker at once.
fn evict(index: &RunIndex, generation: u64) {
    for worker in 0..WORKERS {
        for (number, chain) in chains(worker, generation).iter().enumerate() {
            if number % 5 == 0 {
                remove(index, worker, &chain[70..75]);
            }
            remove(index, worker, &chain[20..]);
            remove(index, worker, &chain[..20]);
        }
    }
}

/// Resident bytes of this process, if the system reports them.
fn resident_bytes() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(pages.split_whitespace().nth(1)?.parse::<usize>().ok()? * 4_096)
}

/// Each generation is stored before the previous one is removed.
#[test]
fn many_generations_take_the_memory_of_one() {
    let index = RunIndex::default();
    let mut early: Option<(RunMemory, Option<usize>)> = None;
    for generation in 0..GENERATIONS {
        for worker in 0..WORKERS {
            chains(worker, generation).iter().for_each(|chain| store(&index, worker, chain));
        }
        if let Some(before) = generation.checked_sub(1) {
            evict(&index, before);
        }
        if generation % 7 == 3 {
            // A restart: the engine publishes everything again.
            let worker = generation % WORKERS;
            index.clear_rank(rank(worker));
            chains(worker, generation).iter().for_each(|chain| store(&index, worker, chain));
        }
        let memory = index.memory();
        let (first, resident) = *early.get_or_insert((memory, None));
        assert_eq!((memory.runs, memory.domains), (first.runs, first.domains), "generation {generation}");
        if generation == 3 {
            early = Some((memory, resident_bytes()));
        }
        if generation > 3 {
            assert!(memory.bytes_used <= first.bytes_used + first.bytes_used / 20, "{memory:?} after {first:?}");
            assert!(memory.bytes_taken <= first.bytes_taken + first.bytes_taken / 20, "{memory:?} after {first:?}");
            if let (Some(then), Some(now)) = (resident, resident_bytes()) {
                assert!(now < then + then / 2 + (32 << 20), "{now} bytes resident after {then}");
            }
        }
    }
    evict(&index, GENERATIONS - 1);
    assert_eq!((index.memory().runs, index.memory().domains), (0, 0));
    assert!(index.ranks().is_empty());
}

/// Memory depends on the remaining blocks, however many there were before.
#[test]
fn memory_is_freed_after_a_mass_eviction() {
    const MANY: u64 = 3_000;
    let index = RunIndex::default();
    let kept = chain(0, 0, 300);
    store(&index, 0, &kept);
    let alone = index.memory();
    for number in 1..=MANY {
        store(&index, number % 3, &chain(number % 3, number, 300));
    }
    let full = index.memory();
    assert!(full.bytes_taken > 16 << 20, "enough to be worth giving back: {full:?}");
    for number in 1..=MANY {
        remove(&index, number % 3, &chain(number % 3, number, 300));
    }
    let left = index.memory();
    assert!(left.runs <= alone.runs && left.domains == 1, "{left:?}, before all that {alone:?}");
    // The last part is not compacted: less than 16 MiB is not worth a copy.
    assert!(left.bytes_taken < full.bytes_taken / 3, "{left:?} of {full:?}");
    index.clear_rank(rank(0));
    assert_eq!((index.memory().runs, index.memory().domains), (0, 0));
    let query: Vec<LocalHash> = kept.iter().map(|block| block.local).collect();
    assert!(index.find(&query).ranks.is_empty());
}

/// An engine removes all blocks but the ends of its chains: the index keeps the blocks before them within the limit.
#[test]
fn removed_blocks_are_kept_within_their_limit() {
    const CHAINS: u64 = 400;
    const LENGTH: u64 = 1_000;
    let limits = RunLimits { removed_blocks_max: 20_000, ..RunLimits::default() };
    let index = RunIndex::new(limits);
    let mut most = 0;
    for number in 0..CHAINS {
        let worker = number % WORKERS;
        let chain = chain(worker, number, LENGTH);
        store(&index, worker, &chain);
        remove(&index, worker, &chain[..chain.len() - 1]);
        most = most.max(index.memory().bytes_used);
    }
    let held: usize = index.sizes().iter().map(|(_, size)| size.blocks).sum();
    assert_eq!(held as u64, CHAINS, "no held block is dropped");
    assert!(most < 2_000_000, "{most} bytes for 20,000 removed blocks and {CHAINS} held ones");
    // Removed blocks are stored again, and their descendants count again.
    for number in 0..CHAINS {
        let worker = number % WORKERS;
        let chain = chain(worker, number, LENGTH);
        store(&index, worker, &chain[..chain.len() - 1]);
        let query: Vec<LocalHash> = chain.iter().map(|block| block.local).collect();
        let found = index.find(&query).get(rank(worker)).map(|found| found.longest());
        assert_eq!(found, Some(LENGTH as u32));
    }
    assert!(index.sizes().iter().all(|(_, size)| size.waiting == 0));
}
