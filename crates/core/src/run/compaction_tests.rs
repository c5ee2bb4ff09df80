//! Maintenance runs between arbitrary events, and the index answers as the oracle does, including while a compacted
//! copy is under construction. In these tests compaction applies to indexes of any size.

use super::{RunIndex, RunLimits};
use crate::oracle::Oracle;
use crate::{
    Block, BlockEvent, DpRank, LocalHash, PrefixIndex, RemovedCopies, SequenceHash, SharedIndex, Tier, WorkerId,
    WorkerRank,
};

const RANKS: u64 = 5;

/// Blocks along a path of content; ranks with an odd number have private sequence hashes.
fn blocks(worker: u64, path: &[u64]) -> Vec<Block> {
    let mut sequence = worker % 2;
    let mut block = |&content: &u64| {
        sequence = sequence.wrapping_mul(31).wrapping_add(content + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Block { sequence: SequenceHash(sequence), local: LocalHash(content) }
    };
    path.iter().map(&mut block).collect()
}

#[test]
fn answers_equal_the_oracle_during_compaction() {
    let mut copies = 0;
    for seed in 0..60 {
        let limits = RunLimits { removed_blocks_max: 40, ..RunLimits::default() };
        let (index, mut oracle) = (RunIndex::new(limits), Oracle::default());
        let mut state = seed;
        let mut below = |end: u64| {
            state = u64::wrapping_mul(state, 6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        for step in 0..400 {
            let worker = below(RANKS);
            let rank = WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) };
            let path: Vec<u64> = (0..below(30) + 1).map(|_| below(2)).collect();
            let path = blocks(worker, &path);
            let from = below(path.len() as u64) as usize;
            let tier = if below(4) == 0 { Tier::Host } else { Tier::Device };
            let sequences = || path[from..].iter().map(|block| block.sequence).collect();
            // Mostly stores first, mostly removals later.
            let is_early = step < 150;
            let event = match below(8) {
                0..4 if is_early || below(4) == 0 => {
                    let parent = from.checked_sub(1).map(|at| path[at].sequence);
                    let start = if below(6) == 0 { from } else { 0 };
                    let parent = parent.filter(|_| start > 0);
                    let copies = below(2) as u32 + 1;
                    BlockEvent::Stored { tier, parent, blocks: path[start..].to_vec(), copies }
                }
                4 => BlockEvent::Copied { tier, blocks: sequences() },
                5 if below(20) == 0 => BlockEvent::Cleared,
                6 => BlockEvent::Removed { tier, blocks: sequences(), copies: RemovedCopies::One },
                _ => BlockEvent::Removed { tier, blocks: sequences(), copies: RemovedCopies::All },
            };
            let is_copying = index.writer.lock().compaction.is_some();
            assert_eq!(index.apply(rank, &event).removed, oracle.apply(rank, &event).removed, "{seed} {step}");
            if below(3) == 0 {
                index.maintain();
            }
            copies += u64::from(is_copying && index.writer.lock().compaction.is_none());
            let query: Vec<LocalHash> = path.iter().map(|block| block.local).collect();
            assert_eq!(index.find(&query).sorted(), oracle.find(&query).sorted(), "{seed} {step}");
        }
        while index.maintain() {}
        for worker in 0..RANKS {
            let rank = WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) };
            let (mut held, mut expected) = (index.held(rank), oracle.held(rank));
            held.sort_unstable_by_key(|block| block.sequence);
            expected.sort_unstable_by_key(|block| block.sequence);
            assert_eq!(held, expected, "{seed}");
            index.clear_rank(rank);
        }
        assert_eq!((index.memory().runs, index.memory().domains), (0, 0), "nothing is kept");
    }
    assert!(copies > 30, "{copies} copies were completed during the events");
}
