//! Queries of ranks with several cache groups equal the brute-force oracle.

mod support;

use flash_indexer_core::designs::Design;
use flash_indexer_core::groups::{
    AttentionWindow, Cut, GroupChange, GroupEvent, GroupId, GroupedIndex, MISSING_LISTED_MAX, MissingBlock, RankEvent,
    SecondaryGroup, Shortfall,
};
use flash_indexer_core::hashing::{BlockSize, sequence_hashes};
use flash_indexer_core::oracle::GroupedOracle;
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, MatchScores, PerTier, RemovedCopies, SequenceHash, SharedIndex, Tier,
    WorkerId, WorkerRank,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;
use support::Step;

const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
const WINDOW: SecondaryGroup = SecondaryGroup { id: GroupId(0), window: AttentionWindow::LastBlocks(2) };

fn index(design: Design) -> GroupedIndex {
    GroupedIndex::new(design.build())
}

fn locals(count: u64) -> Vec<LocalHash> {
    (1..=count).map(LocalHash).collect()
}

fn sequences(count: u64) -> Vec<SequenceHash> {
    sequence_hashes(&locals(count)).collect()
}

/// A store of the first `count` blocks of the sequence 1, 2, 3, …
fn stored(count: u64, tier: Tier) -> BlockEvent {
    let blocks = sequences(count).into_iter().zip(locals(count));
    let blocks = blocks.map(|(sequence, local)| Block { sequence, local }).collect();
    BlockEvent::Stored { tier, parent: None, blocks, copies: 1 }
}

/// A store of some of them, counted from one, in a secondary group.
fn group_stored(positions: &[usize], tier: Tier) -> GroupEvent {
    let sequences = sequences(20);
    GroupEvent::Stored { tier, blocks: positions.iter().map(|&at| sequences[at - 1]).collect(), copies: 1 }
}

fn change(group: SecondaryGroup, event: GroupEvent) -> GroupChange {
    GroupChange { group, event }
}

/// Usable blocks of the sequence, from device memory to all tiers.
fn usable(index: &GroupedIndex, count: u64) -> [u32; 4] {
    index.find(&locals(count)).get(RANK).map(|found| found.blocks.0).unwrap_or_default()
}

#[test]
fn a_window_needs_its_last_blocks_and_no_others() {
    let index = index(Design::Run);
    index.apply(RANK, &stored(8, Tier::Device));
    assert_eq!(usable(&index, 8), [8; 4], "one group so far");
    index.apply_group(RANK, &change(WINDOW, group_stored(&[5, 6], Tier::Device)));
    assert_eq!(usable(&index, 8), [6; 4]);
    assert_eq!(usable(&index, 5), [0; 4], "the first five end in the middle of a window");
    index.apply_group(RANK, &change(WINDOW, group_stored(&[1], Tier::Device)));
    assert_eq!(usable(&index, 5), [1; 4], "a prefix that is shorter than the window needs all of its blocks");
    index.apply_group(RANK, &change(WINDOW, group_stored(&[8], Tier::Device)));
    assert_eq!(usable(&index, 8), [6; 4]);
    index.apply_group(RANK, &change(WINDOW, group_stored(&[7], Tier::Device)));
    assert_eq!(usable(&index, 8), [8; 4]);
}

#[test]
fn a_prompt_that_ends_with_a_block_counts_as_far_as_an_engine_can_start_with_it() {
    let index = index(Design::Run);
    index.apply(RANK, &stored(8, Tier::Device));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[3, 4, 7, 8], Tier::Device)));
    let startable = |count| index.find_prompt(&locals(count)).get(RANK).map(|found| found.blocks.0);
    assert_eq!(usable(&index, 8), [8; 4]);
    assert_eq!(startable(8), Some([4; 4]), "the first seven blocks end in the middle of a window");
    assert_eq!(startable(4), None);
    index.apply_group(RANK, &change(WINDOW, group_stored(&[6], Tier::Host)));
    assert_eq!(startable(8), Some([4, 8, 8, 8]));
    let other = WorkerRank { dp_rank: DpRank(1), ..RANK };
    index.apply(other, &stored(8, Tier::Device));
    assert_eq!(index.find_prompt(&locals(8)).get(other).map(|found| found.blocks.0), Some([8; 4]), "one group");
}

#[test]
fn a_cut_lists_each_missing_block() {
    let index = index(Design::Run);
    let whole = SecondaryGroup { id: GroupId(1), window: AttentionWindow::Full };
    index.apply(RANK, &stored(8, Tier::Device));
    assert_eq!(index.cut(RANK, &locals(8), 8, Tier::External), None, "one group so far");
    index.apply_group(RANK, &change(whole, group_stored(&[1, 2, 3, 4, 5, 6, 8], Tier::Device)));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[3, 4], Tier::Device)));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[7, 8], Tier::Disk)));
    let missing = |position, held_in| MissingBlock { position, held_in };
    let of_whole = Shortfall { group: whole, missing_count: 1, missing: vec![missing(6, None)] };
    let on_disk = vec![missing(6, Some(Tier::Disk)), missing(7, Some(Tier::Disk))];
    let of_window = Shortfall { group: WINDOW, missing_count: 2, missing: on_disk };
    let cut = |shortfalls| Some(Cut { usable: 4, wanted: 8, shortfalls });
    assert_eq!(index.cut(RANK, &locals(8), 8, Tier::Host), cut(vec![of_window, of_whole.clone()]));
    assert_eq!(index.cut(RANK, &locals(8), 8, Tier::Disk), cut(vec![of_whole]));

    index.apply_group(RANK, &change(whole, group_stored(&[7], Tier::Device)));
    assert_eq!(index.cut(RANK, &locals(8), 8, Tier::Disk), None);
    let lacks = Shortfall { group: WINDOW, missing_count: 1, missing: vec![missing(5, None)] };
    let startable = Cut { usable: 4, wanted: 7, shortfalls: vec![lacks] };
    assert_eq!(index.cut_prompt(RANK, &locals(8), 8, Tier::Disk), Some(startable), "the last block is computed");
    assert_eq!(index.cut_prompt(RANK, &[], 0, Tier::Disk), None);
}

#[test]
fn only_the_first_missing_blocks_are_listed() {
    let index = index(Design::Run);
    let whole = SecondaryGroup { id: GroupId(1), window: AttentionWindow::Full };
    let blocks = MISSING_LISTED_MAX as u32 + 10;
    index.apply(RANK, &stored(u64::from(blocks), Tier::Device));
    index.apply_group(RANK, &change(whole, group_stored(&[], Tier::Device)));
    let cut = index.cut(RANK, &locals(u64::from(blocks)), blocks, Tier::Device).expect("it lacks everything");
    assert_eq!((cut.shortfalls[0].missing_count, cut.shortfalls[0].missing.len()), (blocks, MISSING_LISTED_MAX));
}

#[test]
fn every_group_must_agree() {
    let index = index(Design::Run);
    let whole = SecondaryGroup { id: GroupId(1), window: AttentionWindow::Full };
    let state = SecondaryGroup { id: GroupId(2), window: AttentionWindow::LastBlocks(1) };
    index.apply_group(RANK, &change(WINDOW, group_stored(&[3, 4, 5, 6], Tier::Device)));
    assert_eq!(usable(&index, 8), [0; 4], "the primary group has not stored the blocks yet");
    index.apply(RANK, &stored(8, Tier::Device));
    assert_eq!(usable(&index, 8), [6; 4]);
    index.apply_group(RANK, &change(whole, group_stored(&[1, 2, 3, 4, 5], Tier::Device)));
    assert_eq!(usable(&index, 8), [5; 4]);
    index.apply_group(RANK, &change(state, group_stored(&[4], Tier::Device)));
    assert_eq!(usable(&index, 8), [4; 4]);
    let removed = |positions: &[usize]| {
        let blocks = positions.iter().map(|&at| sequences(8)[at - 1]).collect();
        GroupEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::One }
    };
    index.apply_group(RANK, &change(whole, removed(&[2])));
    assert_eq!(usable(&index, 8), [0; 4]);
    let applied = index.apply_group(RANK, &change(whole, removed(&[2, 1])));
    assert_eq!((applied.removed, applied.unknown), (1, 1));
}

#[test]
fn tiers_are_used_together_in_every_group() {
    let index = index(Design::Run);
    index.apply(RANK, &stored(6, Tier::Device));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[3, 4], Tier::Device)));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[5, 6], Tier::Disk)));
    assert_eq!(usable(&index, 6), [4, 4, 6, 6]);
}

#[test]
fn a_redefined_sequence_hash_counts_at_its_new_position() {
    let index = index(Design::Run);
    index.apply(RANK, &stored(3, Tier::Device));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[2, 3], Tier::Device)));
    assert_eq!(usable(&index, 3), [3; 4]);
    let [first, second, third] = sequences(3)[..] else { panic!("three sequence hashes") };
    let store = |parent, sequence, local| {
        let blocks = vec![Block { sequence, local: LocalHash(local) }];
        index.apply(RANK, &BlockEvent::Stored { tier: Tier::Device, parent, blocks, copies: 1 });
    };
    // Another sequence hash takes the position of the third block, whose own sequence hash is redefined.
    store(None, third, 9);
    store(Some(second), SequenceHash(77), 3);
    assert_eq!(usable(&index, 3), [0; 4], "the group does not hold the new sequence hash");
    let of_new_place = index.find(&[LocalHash(9)]).get(RANK).map(|found| found.blocks.0);
    assert_eq!(of_new_place, Some([1; 4]));
    store(Some(second), third, 3);
    assert_eq!(usable(&index, 3), [3; 4]);

    // A block that is removed and stored again returns to its position; the group held it all the time.
    let blocks = vec![third, SequenceHash(77), second, first];
    index.apply(RANK, &BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All });
    assert_eq!(usable(&index, 3), [0; 4]);
    index.apply(RANK, &stored(3, Tier::Device));
    assert_eq!(usable(&index, 3), [3; 4]);
}

#[test]
fn a_clear_leaves_the_groups_known_and_a_cleared_rank_has_none() {
    let index = index(Design::Run);
    index.apply(RANK, &stored(4, Tier::Device));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[3, 4], Tier::Device)));
    assert_eq!(index.size(RANK).blocks, 4);
    assert_eq!(index.apply(RANK, &BlockEvent::Cleared).removed, 4);
    assert!(index.ranks().is_empty());
    index.apply(RANK, &stored(4, Tier::Device));
    assert_eq!(usable(&index, 4), [0; 4], "the window's blocks are dropped as well");
    index.clear_rank(RANK);
    assert!(index.ranks().is_empty());
    assert_eq!(index.dump_events(RANK), []);
    index.apply(RANK, &stored(4, Tier::Device));
    assert_eq!(usable(&index, 4), [4; 4]);
}

#[test]
fn a_window_reaches_the_blocks_before_the_next_token() {
    let block_size = BlockSize::new(32).expect("not zero");
    let reach = |tokens| AttentionWindow::sliding_window(tokens, block_size);
    assert_eq!(reach(64), AttentionWindow::LastBlocks(2));
    assert_eq!(reach(65), AttentionWindow::LastBlocks(2));
    assert_eq!(reach(66), AttentionWindow::LastBlocks(3));
    assert_eq!(reach(1), AttentionWindow::LastBlocks(0));
}

#[derive(Debug, Clone)]
enum GroupedStep {
    Indexed(Step),
    Further(WorkerRank, GroupChange),
}

/// Streams in which a rank has one sequence hash for a prefix.
fn consistent_stream() -> impl Strategy<Value = Vec<GroupedStep>> {
    vec(prop_oneof![support::consistent_step().prop_map(GroupedStep::Indexed), further()], 1..60)
}

/// Arbitrary streams, including contradictions.
fn any_stream() -> impl Strategy<Value = Vec<GroupedStep>> {
    let indexed = support::stream(12).prop_map(|steps| steps.into_iter().map(GroupedStep::Indexed).collect());
    let further = further().prop_map(|step| vec![step]);
    vec(prop_oneof![1 => indexed, 4 => further], 1..20).prop_map(|parts: Vec<Vec<_>>| parts.concat())
}

fn group() -> impl Strategy<Value = SecondaryGroup> {
    let reach = |id| match id {
        0 => AttentionWindow::LastBlocks(1),
        1 => AttentionWindow::LastBlocks(2),
        _ => AttentionWindow::Full,
    };
    let usual = (0..3u32).prop_map(move |id| (id, reach(id)));
    let changed = (0..3u32, 0..4u32).prop_map(|(id, blocks)| (id, AttentionWindow::LastBlocks(blocks)));
    prop_oneof![9 => usual, 1 => changed].prop_map(|(id, window)| SecondaryGroup { id: GroupId(id), window })
}

/// Some sequence hashes of a chain, or arbitrary ones.
fn named(rank: WorkerRank) -> impl Strategy<Value = Vec<SequenceHash>> {
    let of_chain = support::path().prop_flat_map(move |path| {
        let names = support::sequences(rank, &path);
        let count = names.len();
        prop_oneof![Just(names.clone()), subsequence(names, 0..=count)]
    });
    prop_oneof![4 => of_chain, 1 => vec(support::any_hash(), 0..4)]
}

fn further() -> impl Strategy<Value = GroupedStep> {
    let event = |rank| {
        let stored = (support::tier(), named(rank), support::copies())
            .prop_map(|(tier, blocks, copies)| GroupEvent::Stored { tier, blocks, copies });
        let removed = (support::tier(), named(rank), support::removed_copies())
            .prop_map(|(tier, blocks, copies)| GroupEvent::Removed { tier, blocks, copies });
        prop_oneof![3 => stored, 1 => removed]
    };
    (support::rank(), group()).prop_flat_map(move |(rank, group)| {
        event(rank).prop_map(move |event| GroupedStep::Further(rank, change(group, event)))
    })
}

/// Drives an index and the oracle with the same stream and compares their answers after every step.
fn drive(
    steps: &[GroupedStep],
    index: &GroupedIndex,
    mut compare: impl FnMut(&GroupedOracle) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut oracle = GroupedOracle::default();
    for step in steps {
        match step {
            GroupedStep::Indexed(step) => {
                step.apply(index);
                match step {
                    Step::Event(rank, event) => oracle.apply(*rank, event),
                    Step::ClearRank(rank) => oracle.clear_rank(*rank),
                    Step::RemoveWorker(worker) => {
                        all_ranks().filter(|rank| rank.worker == *worker).for_each(|rank| oracle.clear_rank(rank));
                    }
                }
            }
            GroupedStep::Further(rank, change) => {
                index.apply_group(*rank, change);
                oracle.apply_group(*rank, change);
            }
        }
        compare(&oracle)?;
    }
    Ok(())
}

/// The answers of a consistent stream are the oracle's; a dump restores them; and nothing is left when
/// all is removed.
fn check(design: Design, steps: &[GroupedStep], queries: &[Vec<LocalHash>]) -> Result<(), TestCaseError> {
    let index = index(design);
    drive(steps, &index, |oracle| {
        for query in queries {
            prop_assert_eq!(index.find(query).sorted(), oracle.find(query).sorted(), "{:?}", query);
        }
        // One query of each stream is enough.
        queries.first().map_or(Ok(()), |query| check_cuts(&index, oracle, query))
    })?;
    let restored = GroupedIndex::new(design.build());
    for rank in all_ranks() {
        for event in index.dump_events(rank) {
            restored.apply_event(rank, &event);
        }
    }
    for query in queries {
        prop_assert_eq!(restored.find(query).sorted(), index.find(query).sorted(), "{:?} restored", query);
    }
    all_ranks().for_each(|rank| remove_everything(&index, rank));
    for query in queries {
        prop_assert!(index.find(query).ranks.is_empty());
    }
    prop_assert!(index.ranks().is_empty());
    Ok(())
}

/// The cuts explain every answer.
fn check_cuts(index: &GroupedIndex, oracle: &GroupedOracle, query: &[LocalHash]) -> Result<(), TestCaseError> {
    let (found, prompt, indexed) = (index.find(query), index.find_prompt(query), oracle.find_indexed(query));
    for rank in all_ranks() {
        let blocks = |scores: &MatchScores| scores.get(rank).map(|found| found.blocks).unwrap_or_default();
        for tier in Tier::ALL {
            let held = blocks(&indexed)[tier];
            let cuts = [index.cut(rank, query, held, tier), index.cut_prompt(rank, query, held, tier)];
            for (cut, scores) in cuts.into_iter().zip([&found, &prompt]) {
                prop_assert_eq!(cut.as_ref().map_or(held, |cut| cut.usable), blocks(scores)[tier]);
                prop_assert!(cut.is_none_or(|cut| cut.usable < cut.wanted && !cut.shortfalls.is_empty()));
            }
        }
    }
    Ok(())
}

/// For any events, an answer is neither below the oracle's nor above what the indexed group holds.
fn check_bounds(steps: &[GroupedStep], queries: &[Vec<LocalHash>]) -> Result<(), TestCaseError> {
    let index = index(Design::Run);
    let blocks = |scores: &MatchScores, rank| scores.get(rank).map(|found| found.blocks.0).unwrap_or_default();
    drive(steps, &index, |oracle| {
        for query in queries {
            let (found, least, most) = (index.find(query), oracle.find(query), oracle.find_indexed(query));
            for rank in all_ranks() {
                for tier in 0..Tier::ALL.len() {
                    let of = |scores| blocks(scores, rank)[tier];
                    prop_assert!(of(&least) <= of(&found) && of(&found) <= of(&most), "{:?} of {:?}", query, rank);
                }
            }
        }
        Ok(())
    })
}

fn all_ranks() -> impl Iterator<Item = WorkerRank> {
    let ranks = (0..2).flat_map(|worker| (0..2).map(move |rank| (worker, rank)));
    ranks.map(|(worker, rank)| WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(rank) })
}

fn remove_everything(index: &GroupedIndex, rank: WorkerRank) {
    for tier in Tier::ALL {
        let blocks = index.held(rank).iter().map(|block| block.sequence).collect();
        index.apply(rank, &BlockEvent::Removed { tier, blocks, copies: RemovedCopies::All });
    }
    for event in index.dump_events(rank) {
        let RankEvent::Secondary(GroupChange { group, event }) = event else { continue };
        let GroupEvent::Stored { tier, blocks, .. } = event else { panic!("a dump consists of stores") };
        index.apply_group(rank, &change(group, GroupEvent::Removed { tier, blocks, copies: RemovedCopies::All }));
    }
}

proptest! {
    #![proptest_config(support::cases(3000))]

    #[test]
    fn equals_the_brute_force_rule(steps in consistent_stream(), queries in vec(support::path(), 12)) {
        check(Design::Run, &steps, &queries)?;
    }

    #[test]
    fn contradictions_stay_within_bounds(steps in any_stream(), queries in vec(support::path(), 12)) {
        check_bounds(&steps, &queries)?;
    }
}

proptest! {
    #![proptest_config(support::cases(300))]

    #[test]
    fn equals_it_beside_another_design(steps in consistent_stream(), queries in vec(support::path(), 12)) {
        check(Design::RadixTree, &steps, &queries)?;
    }
}

#[test]
fn groups_beyond_the_limit_are_refused() {
    let index = index(Design::Run);
    let group = |id| SecondaryGroup { id: GroupId(id), window: AttentionWindow::LastBlocks(1) };
    for id in 0..flash_indexer_core::groups::GROUPS_MAX as u32 {
        assert_eq!(index.apply_group(RANK, &change(group(id), group_stored(&[1], Tier::External))).stored, 1);
    }
    assert_eq!(index.apply_group(RANK, &change(group(99), group_stored(&[1, 2], Tier::Device))).refused, 2);
    index.apply(RANK, &stored(1, Tier::Device));
    let found = index.find(&locals(1)).get(RANK).map(|found| found.blocks);
    assert_eq!(found, Some(PerTier([0, 0, 0, 1])), "the last group's bits are its own");
}
