//! The exact error of the designs that look blocks up by local hash alone.

use std::collections::BTreeSet;

use crate::support::{Step, check_equal_state, restore};
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{
    AppliedChanges, Block, BlockEvent, LocalHash, LockedIndex, MatchScores, PerTier, RankMatch, RemovedCopies,
    SequenceHash, SharedIndex, Tier, WorkerRank,
};
use flash_indexer_designs::Design;
use proptest::collection::vec;
use proptest::prelude::*;

/// The documented answer: the number of leading local hashes for which the rank holds any block in the tier or a faster one.
fn documented_answer(oracle: &dyn SharedIndex, query: &[LocalHash]) -> MatchScores {
    let depth = |rank, tier| {
        let locals = locals_within(oracle, rank, tier);
        query.iter().take_while(|local| locals.contains(local)).count() as u32
    };
    let matches = oracle.ranks().into_iter().map(|rank| {
        let mut blocks = PerTier::default();
        Tier::ALL.into_iter().for_each(|tier| blocks[tier] = depth(rank, tier));
        RankMatch { rank, blocks }
    });
    MatchScores { ranks: matches.filter(|found| found.longest() > 0).collect() }.sorted()
}

/// The local hashes of the blocks that a rank holds in a tier or a faster one.
fn locals_within(oracle: &dyn SharedIndex, rank: WorkerRank, tier: Tier) -> BTreeSet<LocalHash> {
    let is_within = |copies: &PerTier<u32>| copies.iter().any(|(held, &copies)| held <= tier && copies > 0);
    oracle.held(rank).iter().filter(|block| is_within(&block.copies)).map(|block| block.local).collect()
}

/// Checks that an answer is the documented one. It is never below the oracle's, and above it exactly if the rank holds the
/// next local hash under another prefix.
fn check_answers(index: &dyn SharedIndex, oracle: &dyn SharedIndex, query: &[LocalHash]) -> Result<(), TestCaseError> {
    let (found, exact) = (index.find(query), oracle.find(query));
    for rank in oracle.ranks() {
        let depths = |scores: &MatchScores| scores.get(rank).map(|found| found.blocks).unwrap_or_default();
        let (found, exact) = (depths(&found), depths(&exact));
        for tier in Tier::ALL {
            prop_assert!(found[tier] >= exact[tier]);
            let next = query.get(exact[tier] as usize);
            let is_held_elsewhere = next.is_some_and(|next| locals_within(oracle, rank, tier).contains(next));
            prop_assert_eq!(found[tier] > exact[tier], is_held_elsewhere);
        }
    }
    prop_assert_eq!(found.sorted(), documented_answer(oracle, query));
    Ok(())
}

fn check_design(design: Design, steps: &[Step], queries: &[Vec<LocalHash>]) -> Result<(), TestCaseError> {
    let (index, oracle) = (design.build(), LockedIndex::<Oracle>::default());
    for step in steps {
        let (applied, expected): (AppliedChanges, AppliedChanges) = (step.apply(&*index), step.apply(&oracle));
        prop_assert_eq!(applied, expected, "{:?}", step);
        check_equal_state(&*index, &oracle)?;
        for query in queries {
            check_answers(&*index, &oracle, query)?;
        }
    }
    let restored = design.build();
    restore(&*index, &*restored);
    check_equal_state(&*restored, &oracle)?;
    for query in queries {
        check_answers(&*restored, &oracle, query)?;
    }
    for rank in index.ranks() {
        index.clear_rank(rank);
    }
    prop_assert!(queries.iter().all(|query| index.find(query).ranks.is_empty()));
    Ok(())
}

/// Local hashes that stand for one prefix each: each is derived from the whole prefix.
fn unique_locals(path: &[LocalHash]) -> Vec<LocalHash> {
    sequence_hashes(path).map(|hash| LocalHash(hash.0)).collect()
}

/// Steps without shared local hashes and without gaps: whole chains in one tier, removed from their ends.
fn gapless_steps() -> impl Strategy<Value = Vec<(WorkerRank, Vec<LocalHash>, bool)>> {
    vec((crate::support::rank(), crate::support::path(), any::<bool>()), 1..30)
}

fn check_gapless(
    design: Design,
    steps: &[(WorkerRank, Vec<LocalHash>, bool)],
    queries: &[Vec<LocalHash>],
) -> Result<(), TestCaseError> {
    let (index, oracle) = (design.build(), LockedIndex::<Oracle>::default());
    for (rank, path, is_stored) in steps {
        let chain = unique_locals(path);
        let event = match is_stored {
            true => stored(&chain),
            false => removed_with_descendants(&oracle, *rank, &chain),
        };
        prop_assert_eq!(index.apply(*rank, &event), oracle.apply(*rank, &event));
        for query in queries {
            prop_assert_eq!(index.find(&unique_locals(query)).sorted(), oracle.find(&unique_locals(query)).sorted());
        }
    }
    Ok(())
}

fn stored(chain: &[LocalHash]) -> BlockEvent {
    let blocks = chain.iter().map(|&local| Block { sequence: SequenceHash(local.0), local }).collect();
    BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 }
}

fn removed_with_descendants(oracle: &dyn SharedIndex, rank: WorkerRank, chain: &[LocalHash]) -> BlockEvent {
    let mut blocks: Vec<SequenceHash> = chain.last().map(|local| SequenceHash(local.0)).into_iter().collect();
    let mut visited = 0;
    while let Some(&parent) = blocks.get(visited) {
        let followers = oracle.held(rank).into_iter().filter(|block| block.parent == Some(parent));
        blocks.extend(followers.map(|block| block.sequence));
        visited += 1;
    }
    BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All }
}

macro_rules! looks_up_by_local_hash {
    ($($name:ident, $cases:literal: $design:ident;)*) => {
        $(mod $name {
            use super::*;

            proptest! {
                #![proptest_config(crate::support::cases($cases))]

                #[test]
                fn claims_too_much_exactly_where_a_rank_holds_the_next_local_hash_elsewhere(
                    steps in crate::support::stream(40),
                    queries in vec(crate::support::path(), 8),
                ) {
                    check_design(Design::$design, &steps, &queries)?;
                }

                #[test]
                fn is_exact_where_local_hashes_are_unique_and_no_rank_has_gaps(
                    steps in gapless_steps(),
                    queries in vec(crate::support::path(), 8),
                ) {
                    check_gapless(Design::$design, &steps, &queries)?;
                }
            }
        })*
    };
}

looks_up_by_local_hash! {
    nested_map, 1000: NestedMap;
    inverted, 1000: Inverted;
    actor, 30: Actor;
}
