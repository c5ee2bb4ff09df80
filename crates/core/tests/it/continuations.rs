//! Matches that other ranks continue, compared with the oracle.

use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{
    Block, BlockEvent, Continuations, DpRank, LocalHash, PerTier, PrefixIndex, RemovedCopies, SequenceHash,
    ShardedIndex, SharedIndex, Tier, WorkerId, WorkerRank,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Two instances and two shared caches.
const RANKS: u64 = 4;
const OTHERS: [u64; 2] = [2, 3];

fn rank(number: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(number), dp_rank: DpRank(0) }
}

/// Sequence hash of a prefix, as engines with one seed compute it.
fn sequence(prefix: &[u64]) -> SequenceHash {
    SequenceHash(prefix.iter().fold(7, |hash, local| (hash ^ (local + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn stored(prefix: &[u64], from: usize, tier: Tier) -> BlockEvent {
    let parent = (from > 0).then(|| sequence(&prefix[..from]));
    let blocks = (from..prefix.len())
        .map(|at| Block { sequence: sequence(&prefix[..=at]), local: LocalHash(prefix[at]) })
        .collect();
    BlockEvent::Stored { tier, parent, blocks, copies: 1 }
}

fn removed(prefix: &[u64], from: usize, tier: Tier) -> BlockEvent {
    let blocks = (from..prefix.len()).map(|at| sequence(&prefix[..=at])).collect();
    BlockEvent::Removed { tier, blocks, copies: RemovedCopies::One }
}

/// The match of a rank that two others continue, and its depth with each of them.
fn continued(index: &dyn SharedIndex, query: &[LocalHash], of: WorkerRank, others: &[WorkerRank]) -> PerTier<u32> {
    let own = index.find(query).get(of).map(|found| found.blocks).unwrap_or_default();
    let numbers: Vec<usize> = (0..others.len()).collect();
    let continuations = Continuations::of(index, query, others.iter().copied());
    let mut blocks = own;
    for (_, reach) in continuations.reaches(of, own, &numbers) {
        for (deepest, reach) in blocks.0.iter_mut().zip(reach.0) {
            *deepest = reach.max(*deepest);
        }
    }
    blocks
}

fn locals(prefix: &[u64]) -> Vec<LocalHash> {
    prefix.iter().copied().map(LocalHash).collect()
}

#[test]
fn a_shared_cache_continues_a_match_whose_first_blocks_it_has_not() {
    let prompt: Vec<u64> = (0..30).collect();
    let (query, others) = (locals(&prompt), [rank(2), rank(3)]);
    let pairs = |index: &dyn SharedIndex| continued(index, &query, rank(0), &others);
    for shards in [1, 2, 4] {
        let index = ShardedIndex::new(shards, RunIndex::default);
        index.apply(rank(2), &stored(&prompt[..20], 10, Tier::Host));
        assert_eq!(pairs(&index), PerTier([0; 4]), "it alone is of no use");
        index.apply(rank(0), &stored(&prompt[..10], 0, Tier::Device));
        assert_eq!(pairs(&index), PerTier([10, 20, 20, 20]), "the parent was stored after the block");
        // A second one, which has removed the blocks before.
        index.apply(rank(3), &stored(&prompt, 0, Tier::External));
        index.apply(rank(3), &removed(&prompt[..20], 0, Tier::External));
        assert_eq!(pairs(&index), PerTier([10, 20, 20, 30]));
        let continuations = Continuations::of(&index, &query, others);
        let reaches = continuations.reaches(rank(0), PerTier([10; 4]), &[0, 1]);
        assert_eq!(reaches, [(0, PerTier([0, 20, 20, 20])), (1, PerTier([0, 0, 0, 30]))]);
        assert_eq!(continuations.reaches(rank(0), PerTier([10; 4]), &[1]), [], "it is not attached to the first one");
        assert_eq!(continuations.reaches(rank(1), PerTier([0; 4]), &[0, 1]), [], "it holds nothing");
        index.apply(rank(2), &removed(&prompt[..20], 15, Tier::Host));
        assert_eq!(pairs(&index), PerTier([10, 15, 15, 15]));
    }
}

fn prefixes() -> impl Strategy<Value = Vec<u64>> {
    vec(0..2_u64, 1..12)
}

proptest! {
    #[test]
    fn continuations_equal_those_of_the_oracle(
        changes in vec((0..RANKS, prefixes(), 0..12_usize, select(Tier::ALL.to_vec()), any::<bool>()), 1..60),
        queries in vec(prefixes(), 1..12),
        shards in 1..4_usize,
    ) {
        let index = ShardedIndex::new(shards, RunIndex::default);
        let mut oracle = Oracle::default();
        let others = OTHERS.map(rank);
        for (number, prefix, from, tier, is_store) in changes {
            let from = from % prefix.len();
            let event = if is_store { stored(&prefix, from, tier) } else { removed(&prefix, from, tier) };
            index.apply(rank(number), &event);
            oracle.apply(rank(number), &event);
            for query in &queries {
                let query = locals(query);
                for of in (0..RANKS).map(rank) {
                    let expected = oracle.continued(&query, of, &others);
                    prop_assert_eq!(continued(&index, &query, of, &others), expected, "{:?} of {:?}", of, query);
                }
            }
        }
    }
}
