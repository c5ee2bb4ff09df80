//! Reading a rank in parts while other ranks change: the result is the rank's blocks, and each part is bounded.

use super::RunIndex;
use crate::{
    Block, BlockEvent, DpRank, HeldBlock, HeldReading, LocalHash, ReadingProgress, RemovedCopies, SequenceHash,
    SharedIndex, Tier, WorkerId, WorkerRank, stored_events,
};

const READ: WorkerRank = WorkerRank { worker: WorkerId(0), dp_rank: DpRank(0) };
const PART_BLOCKS: usize = 8;
/// Blocks of a part, and the visits of its runs.
const PART_STEPS_MAX: u64 = 2 * PART_BLOCKS as u64 + 1;

/// Reproducible numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Blocks of a prompt: the common part of all prompts, and its own branch.
fn prompt(branch: u64, leaves_at: u64, blocks: u64) -> Vec<Block> {
    let mut sequence = 1_u64;
    let block = |at: u64| {
        let local = if at < leaves_at { at } else { (branch + 1) << 32 | at };
        sequence = sequence.rotate_left(5).wrapping_add(local).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Block { sequence: SequenceHash(sequence), local: LocalHash(local) }
    };
    (0..blocks).map(block).collect()
}

fn stored(blocks: Vec<Block>) -> BlockEvent {
    BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 }
}

fn change(index: &RunIndex, rank: WorkerRank, numbers: &mut Numbers) {
    let length = 20 + numbers.below(100);
    let leaves_at = numbers.below(length);
    let blocks = prompt(numbers.below(12), leaves_at, length);
    let event = match numbers.below(10) {
        0..6 => stored(blocks),
        6..9 => {
            let from = numbers.below(length) as usize;
            let blocks = blocks[from..].iter().rev().map(|block| block.sequence).collect();
            BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::One }
        }
        _ if rank == READ => stored(blocks),
        _ => BlockEvent::Cleared,
    };
    index.apply(rank, &event);
}

fn sorted(mut blocks: Vec<HeldBlock>) -> Vec<HeldBlock> {
    blocks.sort_unstable_by_key(|block| block.sequence);
    blocks
}

#[test]
fn a_rank_is_read_in_bounded_parts_while_others_change() {
    let mut numbers = Numbers(7);
    let mut read_at_once = 0;
    for _ in 0..100 {
        let index = RunIndex::default();
        for number in 0..40 {
            change(&index, WorkerRank { worker: WorkerId(number % 4), dp_rank: DpRank(0) }, &mut numbers);
        }
        let held = sorted(index.held(READ));
        let mut reading = HeldReading::new(READ);
        loop {
            let waiting = index.size(READ).waiting as u64;
            let before = index.writer.lock().steps.taken();
            let progress = index.read_held(&mut reading, PART_BLOCKS);
            let steps = index.writer.lock().steps.taken() - before;
            if progress == ReadingProgress::Complete {
                read_at_once += u32::from(steps > PART_STEPS_MAX + waiting);
                break;
            }
            assert!(steps <= PART_STEPS_MAX + waiting, "{steps} steps for a part, {waiting} blocks wait");
            let other = WorkerRank { worker: WorkerId(1 + numbers.below(3)), dp_rank: DpRank(0) };
            change(&index, other, &mut numbers);
            index.maintain();
        }
        assert_eq!(sorted(reading.into_blocks()), held);
    }
    assert!(read_at_once < 5, "{read_at_once} of 100 ranks were read at once");
}

/// A new index with the result of a rank's reading: the held blocks, and the removed ones that are kept for their descendants.
fn rebuilt(index: &RunIndex) -> RunIndex {
    let mut reading = HeldReading::new(READ).with_kept();
    while index.read_held(&mut reading, PART_BLOCKS) == ReadingProgress::More {}
    let (copy, mut kept) = (RunIndex::default(), Vec::new());
    for event in stored_events(reading.into_blocks_and_kept()) {
        match event {
            BlockEvent::Stored { tier, parent, blocks, copies: 0 } => {
                kept.extend(blocks.iter().map(|block| block.sequence));
                copy.apply(READ, &BlockEvent::Stored { tier, parent, blocks, copies: 1 });
            }
            event => {
                copy.apply(READ, &event);
            }
        }
    }
    copy.apply(READ, &BlockEvent::Removed { tier: Tier::Device, blocks: kept, copies: RemovedCopies::One });
    copy
}

#[test]
fn a_rank_that_is_rebuilt_from_a_reading_knows_the_parents_of_later_blocks() {
    let mut numbers = Numbers(11);
    let (mut stores_below_holes, mut holes) = (0, 0);
    for _ in 0..300 {
        let index = RunIndex::default();
        for number in 0..20 {
            change(&index, WorkerRank { worker: WorkerId(number % 2), dp_rank: DpRank(0) }, &mut numbers);
        }
        for _ in 0..30 {
            let held = index.held(READ);
            let hole = &held.get(numbers.below(held.len().max(1) as u64) as usize);
            let removed = hole.map(|block| block.sequence).into_iter().collect();
            index.apply(READ, &BlockEvent::Removed { tier: Tier::Device, blocks: removed, copies: RemovedCopies::All });
        }
        let copy = rebuilt(&index);
        assert_eq!(sorted(copy.held(READ)), sorted(index.held(READ)));
        assert_eq!(copy.size(READ), index.size(READ));
        let held = sorted(index.held(READ));
        holes += held
            .iter()
            .filter(|block| block.parent.is_some_and(|parent| !held.iter().any(|it| it.sequence == parent)))
            .count();
        for parent in &held {
            let block = Block { sequence: SequenceHash(parent.sequence.0 ^ 1), local: LocalHash(99) };
            let event = BlockEvent::Stored {
                tier: Tier::Device,
                parent: Some(parent.sequence),
                blocks: vec![block],
                copies: 1,
            };
            assert_eq!(copy.apply(READ, &event), index.apply(READ, &event), "below {parent:?}");
            stores_below_holes += 1;
        }
        assert_eq!(copy.size(READ), index.size(READ));
    }
    assert!(holes > 1_000 && stores_below_holes > 1_000, "{holes} holes, {stores_below_holes} stores");
}
