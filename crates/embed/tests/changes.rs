//! Changes from the caller: answers equal the oracle's, even while threads change and query.

use std::thread;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, PrefixIndex, RankMatch, RemovedCopies, SequenceHash, Tier, WorkerId,
    WorkerRank,
};
use flash_indexer_embed::{EmbeddedIndex, EngineOptions, FoundRank, TrustState};
use proptest::prelude::*;

const INSTANCES: u64 = 3;

fn index() -> EmbeddedIndex {
    let index = EmbeddedIndex::new(BlockSize::new(1).expect("not zero"));
    (0..INSTANCES).for_each(|id| index.register(WorkerId(id), EngineOptions::default()).expect("registered"));
    index
}

/// A sequence hash. Its block's local hash is the remainder by three, so equal prefixes are frequent.
fn hash() -> std::ops::Range<u64> {
    1..27
}

fn event() -> impl Strategy<Value = BlockEvent> {
    let tier = prop::sample::select(&Tier::ALL[..]);
    let blocks = prop::collection::vec(hash(), 1..4);
    let block = |hash| Block { sequence: SequenceHash(hash), local: LocalHash(hash % 3) };
    let stored = (tier.clone(), prop::option::of(hash()), blocks.clone()).prop_map(move |(tier, parent, blocks)| {
        let blocks = blocks.into_iter().map(block).collect();
        BlockEvent::Stored { tier, parent: parent.map(SequenceHash), blocks, copies: 1 }
    });
    let removed = (tier, blocks, any::<bool>()).prop_map(|(tier, blocks, one)| {
        let copies = if one { RemovedCopies::One } else { RemovedCopies::All };
        BlockEvent::Removed { tier, blocks: blocks.into_iter().map(SequenceHash).collect(), copies }
    });
    prop_oneof![6 => stored, 3 => removed, 1 => Just(BlockEvent::Cleared)]
}

fn rank() -> impl Strategy<Value = WorkerRank> {
    (0..INSTANCES, 0..2_u32).prop_map(|(id, dp)| WorkerRank { worker: WorkerId(id), dp_rank: DpRank(dp) })
}

fn matches(mut found: Vec<FoundRank>) -> Vec<RankMatch> {
    found.sort_unstable_by_key(|found| found.rank);
    found.into_iter().map(|FoundRank { rank, blocks, .. }| RankMatch { rank, blocks }).collect()
}

proptest! {
    #[test]
    fn answers_equal_the_oracle_after_every_change(
        changes in prop::collection::vec((rank(), event()), 1..60),
        query in prop::collection::vec((0..3_u64).prop_map(LocalHash), 1..6),
    ) {
        let (index, mut oracle) = (index(), Oracle::default());
        for (rank, event) in changes {
            let applied = index.apply(rank, &event).expect("applied");
            let expected = oracle.apply(rank, &event);
            prop_assert_eq!((applied.stored, applied.removed), (expected.stored, expected.removed));
            while index.maintain().expect("maintained") {}
            let all = oracle.find(&query).sorted().ranks;
            prop_assert_eq!(&matches(index.find_hashes(&query, None).expect("an answer")), &all);
            let two = index.find_hashes(&query, Some(2)).expect("an answer");
            let mut deepest = all;
            deepest.sort_by_key(|found| {
                (u32::MAX - found.blocks[Tier::Device], u32::MAX - found.longest(), found.rank)
            });
            deepest.truncate(2);
            let two: Vec<_> = two.into_iter().map(|found| (found.rank, found.blocks)).collect();
            prop_assert_eq!(two, deepest.into_iter().map(|found| (found.rank, found.blocks)).collect::<Vec<_>>());
            prop_assert_eq!(index.size(rank).expect("a size").blocks, oracle.size(rank).blocks);
        }
    }
}

#[test]
fn threads_change_and_query_at_the_same_time() {
    let index = index();
    let chain: Vec<Block> = (1..=64).map(|at| Block { sequence: SequenceHash(at), local: LocalHash(at) }).collect();
    let query: Vec<LocalHash> = chain.iter().map(|block| block.local).collect();
    thread::scope(|scope| {
        for id in 0..INSTANCES {
            let (index, chain) = (&index, &chain);
            scope.spawn(move || {
                let rank = WorkerRank { worker: WorkerId(id), dp_rank: DpRank(0) };
                let stored = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks: chain.clone(), copies: 1 };
                for _ in 0..200 {
                    index.apply(rank, &BlockEvent::Cleared).expect("applied");
                    index.apply(rank, &stored).expect("applied");
                }
            });
            let query = &query;
            scope.spawn(move || {
                for _ in 0..500 {
                    let found = index.find_hashes(query, Some(2)).expect("an answer");
                    assert!(found.len() <= 2 && found.iter().all(|found| found.trust == TrustState::Exact));
                }
            });
        }
    });
    let found = index.find_hashes(&query, None).expect("an answer");
    assert_eq!(found.len(), INSTANCES as usize);
    assert!(found.iter().all(|found| found.blocks[Tier::Device] == 64));
}
