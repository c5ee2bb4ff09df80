//! Arbitrary bytes as a stream of events and queries, applied to the run index and to the oracle in lockstep.
//!
//! ```text
//!  stream: limit of removed blocks, or none (8) | steps
//!  step:   kind (8) | worker (8) | arguments
//!  prompt: family (8) | branching point in the family's common chain (8) | blocks (8)
//! ```
//!
//! Bytes are reduced to useful ranges, so that nearly every stream has an effect: sixteen workers, more
//! than a run's header has room for, and prompts of up to 48 blocks. Missing bytes end the stream.

use std::collections::BTreeSet;

use crate::top::check_top;
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::run::{RunIndex, RunLimits};
use flash_indexer_core::{
    Block, BlockEvent, DpRank, HeldBlock, LocalHash, LockedIndex, RemovedCopies, SequenceHash, SharedIndex, Tier,
    WorkerId, WorkerRank,
};

const WORKERS: u8 = 16;
const PROMPT_BLOCKS_MAX: u8 = 48;

/// A step of a stream.
enum Step {
    Event(WorkerRank, BlockEvent),
    Query(Vec<LocalHash>, usize, Tier),
}

/// Applies the bytes; panics if the run index differs from the oracle.
pub(crate) fn play(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let (index, oracle) = (RunIndex::new(bytes.limits()), LockedIndex::<Oracle>::default());
    while let Some(step) = bytes.step() {
        match step {
            Step::Event(rank, event) => {
                let (mut applied, expected) = (index.apply(rank, &event), oracle.apply(rank, &event));
                (applied.waiting, applied.waiting_removed) = (0, 0);
                assert_eq!(applied, expected, "{rank:?} {event:?}");
            }
            Step::Query(query, count, level) => check_query(&index, &oracle, &query, (count, level)),
        }
    }
    check_content(&index, &oracle);
    let restored = RunIndex::default();
    for rank in index.ranks() {
        for event in index.dump(rank) {
            restored.apply(rank, &event);
        }
    }
    check_content(&restored, &oracle);
    for rank in oracle.ranks() {
        index.clear_rank(rank);
    }
    assert_eq!((index.memory().runs, index.memory().domains), (0, 0), "no run remains after all blocks are removed");
}

fn check_query(index: &RunIndex, oracle: &dyn SharedIndex, query: &[LocalHash], which: (usize, Tier)) {
    let expected = oracle.find(query).sorted();
    assert_eq!(index.find(query).sorted(), expected, "query {query:?}");
    check_top(index, &expected, query, which);
}

fn check_content(index: &dyn SharedIndex, oracle: &dyn SharedIndex) {
    let ranks = |index: &dyn SharedIndex| index.ranks().into_iter().collect::<BTreeSet<_>>();
    assert_eq!(ranks(index), ranks(oracle));
    for rank in oracle.ranks() {
        assert_eq!(held(index, rank), held(oracle, rank));
        let (size, expected) = (index.size(rank), oracle.size(rank));
        assert_eq!((size.blocks, size.by_tier), (expected.blocks, expected.by_tier));
    }
}

fn held(index: &dyn SharedIndex, rank: WorkerRank) -> Vec<HeldBlock> {
    let mut held = index.held(rank);
    held.sort_by_key(|block| block.sequence);
    held
}

/// The remaining bytes.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Half of all streams reach the limit of removed blocks. None reaches that of moved blocks, beyond which the index
    /// refuses redefinitions that the oracle applies.
    fn limits(&mut self) -> RunLimits {
        let limits = RunLimits { moved_blocks_max: usize::MAX, ..RunLimits::default() };
        match self.next() {
            Some(byte) if byte % 2 == 1 => RunLimits { removed_blocks_max: usize::from(byte / 2), ..limits },
            _ => limits,
        }
    }

    fn step(&mut self) -> Option<Step> {
        let (what, worker) = (self.next()?, self.next()? % WORKERS);
        let tier = if what & 0xc0 == 0 { Tier::ALL[usize::from(what >> 4)] } else { Tier::Device };
        let event = match what % 16 {
            0..=4 => self.stored(worker, tier)?,
            5..=7 => self.removed(worker, tier)?,
            8 => {
                let copies = match what >> 6 {
                    0 | 1 => RemovedCopies::One,
                    left => RemovedCopies::AllBut(u32::from(left) - 2),
                };
                BlockEvent::Removed { tier, blocks: vec![self.sequence(worker)?], copies }
            }
            9 => BlockEvent::Copied { tier, blocks: vec![self.sequence(worker)?, self.sequence(worker)?] },
            10 => BlockEvent::Cleared,
            11 => self.contradiction(tier)?,
            _ => {
                let level = Tier::ALL[usize::from(what >> 4) % Tier::ALL.len()];
                return Some(Step::Query(self.prompt()?, usize::from(worker), level));
            }
        };
        Some(Step::Event(rank(worker), event))
    }

    fn prompt(&mut self) -> Option<Vec<LocalHash>> {
        let (family, leaves_at, blocks) = (self.next()? % 3, self.next()?, self.next()? % PROMPT_BLOCKS_MAX + 1);
        // Few branching points, with two continuations each.
        let (own, leaves_at) = (leaves_at % 2 + 1, leaves_at / 2 % 8 * 5);
        let content = |at: u8| u64::from(at) | if at < leaves_at { 0 } else { u64::from(own) << 8 };
        Some((0..blocks).map(|at| LocalHash(u64::from(family) << 16 | content(at))).collect())
    }

    fn stored(&mut self, worker: u8, tier: Tier) -> Option<BlockEvent> {
        let (locals, from) = (self.prompt()?, self.next()?);
        let sequences = sequences(worker, &locals);
        // Half of all stores start in the middle.
        let from = if from.is_multiple_of(2) { 0 } else { usize::from(from / 2) % locals.len() };
        let parent = from.checked_sub(1).map(|at| sequences[at]);
        let blocks = (from..locals.len()).map(|at| Block { sequence: sequences[at], local: locals[at] }).collect();
        Some(BlockEvent::Stored { tier, parent, blocks, copies: 1 })
    }

    /// Blocks of a prompt, last first.
    fn removed(&mut self, worker: u8, tier: Tier) -> Option<BlockEvent> {
        let sequences = sequences(worker, &self.prompt()?);
        let (from, count) = (usize::from(self.next()?) % sequences.len(), usize::from(self.next()?) + 1);
        let blocks = sequences[from..sequences.len().min(from + count)].iter().rev().copied().collect();
        Some(BlockEvent::Removed { tier, blocks, copies: RemovedCopies::All })
    }

    fn sequence(&mut self, worker: u8) -> Option<SequenceHash> {
        let sequences = sequences(worker, &self.prompt()?);
        Some(sequences[usize::from(self.next()?) % sequences.len()])
    }

    /// Contradictions that no correct engine publishes: few sequence hashes, which are redefined and follow each
    /// other in circles.
    fn contradiction(&mut self, tier: Tier) -> Option<BlockEvent> {
        let (parent, first, second) = (self.next()?, self.next()?, self.next()?);
        let block = |byte: u8| Block {
            sequence: SequenceHash(u64::from(byte % 8)),
            local: LocalHash(u64::from(byte / 8 % 3) << 16),
        };
        let parent = (parent % 4 != 0).then_some(SequenceHash(u64::from(parent / 4 % 8)));
        Some(BlockEvent::Stored { tier, parent, blocks: vec![block(first), block(second)], copies: 1 })
    }
}

fn rank(worker: u8) -> WorkerRank {
    WorkerRank { worker: WorkerId(u64::from(worker / 2)), dp_rank: DpRank(u32::from(worker % 2)) }
}

/// One worker of four has a private hash seed.
fn sequences(worker: u8, locals: &[LocalHash]) -> Vec<SequenceHash> {
    let seed = if worker % 4 == 3 { u64::from(worker) << 40 } else { 0 };
    sequence_hashes(locals).map(|sequence| SequenceHash(sequence.0 ^ seed)).collect()
}
