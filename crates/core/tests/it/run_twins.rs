//! Ranks that hold prefixes under several sequence hashes: the run index answers as the oracle does, and keeps no
//! twins after their removal.

use crate::support::check_equal;
use crate::top::check_top;
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::run::{RunIndex, RunLimits};
use flash_indexer_core::{
    AppliedChanges, Block, BlockEvent, DpRank, LocalHash, LockedIndex, RemovedCopies, SequenceHash, SharedIndex, Tier,
    WorkerId, WorkerRank,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Part of a chain: content of one of a few prompts, with alias sequence hashes from some block on.
#[derive(Debug, Clone, Copy)]
struct Chain {
    prompt: u64,
    blocks: usize,
    alias: u64,
    alias_from: usize,
}

#[derive(Debug, Clone)]
enum Change {
    Store { rank: u64, chain: Chain, from: usize, tier: Tier },
    Remove { rank: u64, chain: Chain, from: usize, tier: Tier },
    Clear { rank: u64 },
}

impl Chain {
    fn locals(self) -> Vec<LocalHash> {
        // Prompts branch at their twentieth block.
        let content = |at: u64| if at < 20 { at } else { at + 1_000 * self.prompt };
        (0..self.blocks as u64).map(|at| LocalHash(content(at))).collect()
    }

    /// Two of three ranks share a seed.
    fn sequences(self, rank: u64) -> Vec<SequenceHash> {
        let seed = (rank % 3).min(1) << 50;
        let alias = |at: usize| if at >= self.alias_from { self.alias << 56 } else { 0 };
        let locals = self.locals();
        let sequences = sequence_hashes(&locals).enumerate();
        sequences.map(|(at, sequence)| SequenceHash((sequence.0 & ((1 << 48) - 1)) ^ seed ^ alias(at))).collect()
    }

    fn stored(self, rank: u64, from: usize, tier: Tier) -> BlockEvent {
        let (locals, sequences) = (self.locals(), self.sequences(rank));
        let from = from.min(locals.len() - 1);
        let parent = from.checked_sub(1).map(|at| sequences[at]);
        let blocks = (from..locals.len()).map(|at| Block { sequence: sequences[at], local: locals[at] }).collect();
        BlockEvent::Stored { tier, parent, blocks, copies: 1 }
    }

    fn removed(self, rank: u64, from: usize, tier: Tier) -> BlockEvent {
        let sequences = self.sequences(rank);
        let blocks = sequences[from.min(sequences.len() - 1)..].iter().rev().copied().collect();
        BlockEvent::Removed { tier, blocks, copies: RemovedCopies::All }
    }
}

fn rank(number: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(number), dp_rank: DpRank(0) }
}

fn chain() -> impl Strategy<Value = Chain> {
    let blocks = prop_oneof![1 => 1..12usize, 3 => 15..70usize];
    let alias_from = prop_oneof![2 => Just(0), 2 => Just(7), 1 => 0..40usize];
    (0..3u64, blocks, 0..4u64, alias_from).prop_map(|(prompt, blocks, alias, alias_from)| Chain {
        prompt,
        blocks,
        alias,
        alias_from,
    })
}

fn change() -> impl Strategy<Value = Change> {
    let tier = || prop_oneof![4 => Just(Tier::Device), 1 => Just(Tier::Host)];
    let from = || prop_oneof![2 => Just(0), 1 => 0..40usize];
    prop_oneof![
        10 => (0..6u64, chain(), from(), tier())
            .prop_map(|(rank, chain, from, tier)| Change::Store { rank, chain, from, tier }),
        8 => (0..6u64, chain(), from(), tier())
            .prop_map(|(rank, chain, from, tier)| Change::Remove { rank, chain, from, tier }),
        1 => (0..6u64).prop_map(|rank| Change::Clear { rank }),
    ]
}

proptest! {
    #![proptest_config(crate::support::cases(300))]

    #[test]
    fn queries_of_twins_equal_the_oracle(
        changes in vec(change(), 1..50),
        queries in vec(chain(), 4),
    ) {
        let (index, oracle) = (RunIndex::default(), LockedIndex::<Oracle>::default());
        let queries: Vec<_> = queries.into_iter().map(Chain::locals).collect();
        for change in &changes {
            let (at, event) = match *change {
                Change::Store { rank: at, chain, from, tier } => (at, chain.stored(at, from, tier)),
                Change::Remove { rank: at, chain, from, tier } => (at, chain.removed(at, from, tier)),
                Change::Clear { rank: at } => (at, BlockEvent::Cleared),
            };
            let (applied, expected) = (index.apply(rank(at), &event), oracle.apply(rank(at), &event));
            prop_assert_eq!(AppliedChanges { waiting: 0, waiting_removed: 0, ..applied }, expected, "{:?}", change);
            check_equal(&index, &oracle, &queries)?;
            for query in &queries {
                check_top(&index, &oracle.find(query).sorted(), query, (2, Tier::External));
            }
        }
        for at in 0..6 {
            index.apply(rank(at), &BlockEvent::Cleared);
        }
        prop_assert_eq!((index.memory().runs, index.memory().domains), (0, 0));
    }
}

/// A rank may have as many additional sequence hashes for a prefix as the limit allows, and no more.
#[test]
fn sequence_hashes_beyond_the_twin_limit_are_refused() {
    let index = RunIndex::new(RunLimits { twins_max: 3, ..RunLimits::default() });
    let stored = |alias| Chain { prompt: 0, blocks: 10, alias, alias_from: 0 }.stored(0, 0, Tier::Device);
    for alias in 0..4 {
        let applied = index.apply(rank(0), &stored(alias));
        assert_eq!(applied, AppliedChanges { stored: 10, ..AppliedChanges::default() }, "{alias}");
    }
    let refused = index.apply(rank(0), &stored(4));
    assert_eq!(refused, AppliedChanges { refused: 10, twins_refused: 10, ..AppliedChanges::default() });
    assert_eq!(index.size(rank(0)).blocks, 40);
    // After the removal of one, there is room for another.
    let oldest = Chain { prompt: 0, blocks: 10, alias: 0, alias_from: 0 };
    assert_eq!(index.apply(rank(0), &oldest.removed(0, 0, Tier::Device)).removed, 10);
    assert_eq!(index.apply(rank(0), &stored(4)).stored, 10);
    assert_eq!(index.find(&oldest.locals()).ranks[0].longest(), 10);
}
