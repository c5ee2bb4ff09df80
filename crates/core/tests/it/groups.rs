//! Queries of ranks with several cache groups equal the brute-force oracle.

#[path = "../support/groups.rs"]
mod grouped;

use flash_indexer_core::groups::{
    AttentionWindow, BlockLink, Cut, GroupBlockSize, GroupEvent, GroupId, GroupedIndex, MISSING_LISTED_MAX,
    MissingBlock, SecondaryGroup, Shortfall,
};
use flash_indexer_core::hashing::{BlockSize, sequence_hashes};
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, PerTier, RemovedCopies, SequenceHash, ShardedIndex, SharedIndex, Tier,
    WorkerId, WorkerRank,
};
use proptest::prelude::*;

use self::grouped::{any_stream, change, check, check_bounds, consistent_stream, queries, size, size_of};

const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
const WINDOW: SecondaryGroup = group(0, AttentionWindow::LastBlocks(2));

/// A group with blocks of the registered size.
const fn group(id: u32, window: AttentionWindow) -> SecondaryGroup {
    SecondaryGroup { id: GroupId(id), window, size: GroupBlockSize::REGISTERED }
}

fn index() -> GroupedIndex {
    GroupedIndex::new(run_index())
}

fn run_index() -> Box<dyn SharedIndex> {
    Box::<RunIndex>::default()
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

/// Usable blocks of the sequence, from device memory to all tiers.
fn usable(index: &GroupedIndex, count: u64) -> [u32; 4] {
    index.find(&locals(count)).get(RANK).map(|found| found.blocks.0).unwrap_or_default()
}

#[test]
fn a_window_needs_its_last_blocks_and_no_others() {
    let index = index();
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
    let index = index();
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
fn what_is_cut_off_is_told_block_by_block() {
    let index = index();
    let whole = group(1, AttentionWindow::Full);
    index.apply(RANK, &stored(8, Tier::Device));
    assert_eq!(index.cut(RANK, &locals(8), 8, Tier::External), None, "one group so far");
    index.apply_group(RANK, &change(whole, group_stored(&[1, 2, 3, 4, 5, 6, 8], Tier::Device)));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[3, 4], Tier::Device)));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[7, 8], Tier::Disk)));
    let missing = |position, held_in| MissingBlock { position, part: 0, held_in };
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
    let index = index();
    let whole = group(1, AttentionWindow::Full);
    let blocks = MISSING_LISTED_MAX as u32 + 10;
    index.apply(RANK, &stored(u64::from(blocks), Tier::Device));
    index.apply_group(RANK, &change(whole, group_stored(&[], Tier::Device)));
    let cut = index.cut(RANK, &locals(u64::from(blocks)), blocks, Tier::Device).expect("it lacks everything");
    assert_eq!((cut.shortfalls[0].missing_count, cut.shortfalls[0].missing.len()), (blocks, MISSING_LISTED_MAX));
}

#[test]
fn a_group_with_larger_blocks_needs_its_own_blocks_and_a_prefix_that_ends_with_one() {
    let index = index();
    let large = SecondaryGroup { size: size(2), ..WINDOW };
    index.apply(RANK, &stored(9, Tier::Device));
    index.apply_group(RANK, &change(large, group_stored(&[4, 6, 8], Tier::Device)));
    assert_eq!(usable(&index, 9), [8; 4]);
    assert_eq!(usable(&index, 8), [8; 4]);
    assert_eq!(usable(&index, 7), [6; 4]);
    assert_eq!(usable(&index, 5), [0; 4], "the first of its last two blocks is missing");
    index.apply_group(RANK, &change(large, group_stored(&[1, 2, 3], Tier::Device)));
    assert_eq!(usable(&index, 5), [4; 4], "sequence hashes inside its blocks make no difference");
    let larger = SecondaryGroup { size: size(3), ..group(1, AttentionWindow::LastBlocks(1)) };
    index.apply_group(RANK, &change(larger, group_stored(&[3, 6, 9], Tier::Device)));
    assert_eq!(usable(&index, 9), [6; 4], "a prefix ends with a block of each group");
    assert_eq!(usable(&index, 5), [0; 4]);
    let startable = index.find_prompt(&locals(6)).get(RANK).map(|found| found.blocks);
    assert_eq!(startable, None, "the engine computes the last block, and cannot start inside a larger one");
}

/// Links from each part of the sequence's blocks to the part before it, with four parts in each block. The parts inside block
/// *n* are 10 *n* + 1, 2 and 3.
fn part_links(blocks: u64) -> Vec<BlockLink> {
    let parts = part_names(blocks);
    let before = std::iter::once(None).chain(parts.iter().copied().map(Some));
    parts.iter().zip(before).map(|(&block, before)| BlockLink { block, before }).collect()
}

fn part_names(blocks: u64) -> Vec<SequenceHash> {
    let inside = |block| [1, 2, 3].map(|part| SequenceHash(10 * block + part));
    (1..=blocks).zip(sequences(blocks)).flat_map(|(block, last)| inside(block).into_iter().chain([last])).collect()
}

/// A store of some parts, counted from one.
fn parts_stored(positions: &[usize], tier: Tier) -> GroupEvent {
    let parts = part_names(4);
    GroupEvent::Stored { tier, blocks: positions.iter().map(|&at| parts[at - 1]).collect(), copies: 1 }
}

#[test]
fn a_group_with_smaller_blocks_needs_the_last_of_them_before_the_end_of_a_prefix() {
    let index = index();
    let small = SecondaryGroup { size: size_of(1), ..group(0, AttentionWindow::LastBlocks(3)) };
    index.apply(RANK, &stored(4, Tier::Device));
    index.apply_group(RANK, &change(small, GroupEvent::Linked(part_links(4))));
    let applied = index.apply_group(RANK, &change(small, parts_stored(&[6, 7, 8, 10, 12, 14, 15], Tier::Device)));
    assert_eq!((applied.stored, applied.unknown), (7, 0));
    assert_eq!(usable(&index, 4), [2; 4], "the third block lacks its third part, and the fourth its last one");
    index.apply_group(RANK, &change(small, parts_stored(&[11], Tier::Host)));
    assert_eq!(usable(&index, 4), [2, 3, 3, 3]);
    index.apply_group(RANK, &change(small, parts_stored(&[16], Tier::Disk)));
    assert_eq!(usable(&index, 4), [2, 3, 4, 4]);
    assert_eq!(usable(&index, 1), [0; 4]);
    index.apply_group(RANK, &change(small, parts_stored(&[2, 3, 4], Tier::Device)));
    assert_eq!(usable(&index, 1), [1; 4]);
    let whole = SecondaryGroup { size: size_of(2), ..group(1, AttentionWindow::Full) };
    index.apply_group(RANK, &change(whole, GroupEvent::Linked(part_links(4))));
    let names = part_names(4);
    let links = [3, 7, 11, 15].map(|at| BlockLink { block: names[at], before: Some(names[at - 2]) });
    index.apply_group(RANK, &change(whole, GroupEvent::Linked(links.to_vec())));
    index.apply_group(RANK, &change(whole, parts_stored(&[2, 4, 6, 8, 12], Tier::Device)));
    assert_eq!(usable(&index, 4), [2; 4], "each group follows its own links");
}

#[test]
fn a_smaller_block_without_a_link_counts_as_missing_and_is_reported() {
    let index = index();
    let small = SecondaryGroup { size: size_of(1), ..WINDOW };
    index.apply(RANK, &stored(2, Tier::Device));
    let applied = index.apply_group(RANK, &change(small, parts_stored(&[3, 4, 7, 8], Tier::Device)));
    assert_eq!((applied.stored, applied.unknown), (4, 4));
    assert_eq!(usable(&index, 2), [0; 4]);
    let links: Vec<_> = part_links(2);
    index.apply_group(RANK, &change(small, GroupEvent::Linked(links[3..=3].to_vec())));
    assert_eq!(usable(&index, 2), [1; 4]);
    // The link of a block that is not held is kept for a copy that names none.
    let removed = |positions: &[usize]| {
        let blocks = positions.iter().map(|&at| part_names(2)[at - 1]).collect();
        GroupEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::One }
    };
    index.apply_group(RANK, &change(small, removed(&[4])));
    assert_eq!(usable(&index, 2), [0; 4]);
    assert_eq!(index.apply_group(RANK, &change(small, parts_stored(&[4], Tier::Host))).unknown, 0);
    assert_eq!(usable(&index, 2), [0, 1, 1, 1]);
    // A recurrent state needs the last block only.
    let state = SecondaryGroup { size: size_of(1), ..group(1, AttentionWindow::LastBlocks(1)) };
    assert_eq!(index.apply_group(RANK, &change(state, parts_stored(&[4, 8], Tier::Device))).unknown, 0);
    assert_eq!(usable(&index, 2), [0, 1, 1, 1]);
    let wider = SecondaryGroup { window: AttentionWindow::LastBlocks(2), ..state };
    let applied = index.apply_group(RANK, &change(wider, parts_stored(&[], Tier::Device)));
    assert_eq!(applied.unknown, 2, "both need links from now on");
}

#[test]
fn missing_smaller_blocks_are_named_by_their_part() {
    let index = index();
    let small = SecondaryGroup { size: size_of(1), ..group(0, AttentionWindow::LastBlocks(3)) };
    index.apply(RANK, &stored(2, Tier::Device));
    index.apply_group(RANK, &change(small, GroupEvent::Linked(part_links(2))));
    index.apply_group(RANK, &change(small, parts_stored(&[2, 3, 4, 6, 8], Tier::Device)));
    index.apply_group(RANK, &change(small, parts_stored(&[7], Tier::Disk)));
    let missing = vec![MissingBlock { position: 1, part: 2, held_in: Some(Tier::Disk) }];
    let shortfalls = vec![Shortfall { group: small, missing_count: 1, missing }];
    let cut = index.cut(RANK, &locals(2), 2, Tier::Device);
    assert_eq!(cut, Some(Cut { usable: 1, wanted: 2, shortfalls }));
}

#[test]
fn a_rank_with_omitted_entries_is_partial_until_its_cache_is_cleared() {
    let (index, other) = (index(), WorkerRank { dp_rank: DpRank(1), ..RANK });
    assert_eq!(index.partial_ranks(), None);
    [RANK, other, RANK].iter().for_each(|&rank| index.record_partial(rank));
    let is_partial = |rank| index.partial_ranks().is_some_and(|ranks| ranks.contains(&rank));
    assert!(is_partial(RANK) && is_partial(other));
    index.apply(RANK, &BlockEvent::Cleared);
    assert!(!is_partial(RANK) && is_partial(other));
    index.clear_rank(other);
    assert_eq!(index.partial_ranks(), None);
    index.record_partial(other);
    index.remove_worker(other.worker);
    assert_eq!(index.partial_ranks(), None);
}

#[test]
fn a_cut_inside_a_larger_block_names_the_group() {
    let index = index();
    let large = SecondaryGroup { size: size(2), ..WINDOW };
    index.apply(RANK, &stored(8, Tier::Device));
    index.apply_group(RANK, &change(large, group_stored(&[4, 6], Tier::Device)));
    let lacks = Shortfall {
        group: large,
        missing_count: 1,
        missing: vec![MissingBlock { position: 7, part: 0, held_in: None }],
    };
    let cut = index.cut(RANK, &locals(8), 8, Tier::Device);
    assert_eq!(cut, Some(Cut { usable: 6, wanted: 8, shortfalls: vec![lacks] }));
    let ends_inside = Shortfall { group: large, missing_count: 0, missing: Vec::new() };
    let cut = index.cut(RANK, &locals(7), 7, Tier::Device);
    assert_eq!(cut, Some(Cut { usable: 6, wanted: 7, shortfalls: vec![ends_inside] }));
}

#[test]
fn a_block_size_is_a_multiple_of_the_registered_one_or_a_part_of_it() {
    let registered = BlockSize::new(16).expect("not zero");
    let span_and_parts = |tokens| GroupBlockSize::of(tokens, registered).map(|size| (size.span(), size.parts()));
    let expected = [None, Some((1, 2)), Some((1, 1)), None, Some((2, 1)), Some((4, 1)), Some((1, 16)), None];
    assert_eq!([0, 8, 16, 24, 32, 64, 1, 6].map(span_and_parts), expected);
    for tokens in [1, 2, 4, 8, 16, 32, 160] {
        assert_eq!(GroupBlockSize::of(tokens, registered).map(|size| size.tokens(registered)), Some(tokens));
    }
    for tokens in 0..300 {
        for registered in [1, 3, 16].map(|tokens| BlockSize::new(tokens).expect("not zero")) {
            for multiple in 1..5 {
                let size = GroupBlockSize::of(multiple * registered.tokens(), registered).expect("a multiple");
                let own = BlockSize::new(size.tokens(registered)).expect("not zero");
                let window = |block_size| AttentionWindow::sliding_window(tokens, block_size);
                assert_eq!(window(registered).with_size(size), window(own), "{tokens} tokens, {own:?}");
            }
        }
    }
}

#[test]
fn every_group_must_agree() {
    let index = index();
    let whole = group(1, AttentionWindow::Full);
    let state = group(2, AttentionWindow::LastBlocks(1));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[3, 4, 5, 6], Tier::Device)));
    assert_eq!(usable(&index, 8), [0; 4], "no store has shown yet what the sequence hashes contain");
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
    let index = index();
    index.apply(RANK, &stored(6, Tier::Device));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[3, 4], Tier::Device)));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[5, 6], Tier::Disk)));
    assert_eq!(usable(&index, 6), [4, 4, 6, 6]);
}

#[test]
fn a_name_counts_where_it_stands_now() {
    let index = index();
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
    let index = index();
    index.apply(RANK, &stored(4, Tier::Device));
    index.apply_group(RANK, &change(WINDOW, group_stored(&[3, 4], Tier::Device)));
    assert_eq!(index.size(RANK).blocks, 4);
    assert_eq!(index.apply(RANK, &BlockEvent::Cleared).removed, 4);
    assert!(index.ranks().is_empty());
    index.apply(RANK, &stored(4, Tier::Device));
    assert_eq!(usable(&index, 4), [0; 4], "the window's blocks are dropped as well");
    index.clear_rank(RANK);
    assert!(index.ranks().is_empty());
    assert_eq!((index.dump(RANK), index.secondary_stores(RANK)), (Vec::new(), Vec::new()));
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

proptest! {
    #![proptest_config(crate::support::cases(3000))]

    #[test]
    fn equals_the_brute_force_rule(steps in consistent_stream(), queries in queries()) {
        check(run_index, &steps, &queries)?;
    }

    #[test]
    fn a_sharded_index_equals_the_brute_force_rule(steps in consistent_stream(), queries in queries()) {
        check(|| Box::new(ShardedIndex::new(2, RunIndex::default)), &steps, &queries)?;
    }

    #[test]
    fn contradictions_stay_within_bounds(steps in any_stream(), queries in queries()) {
        check_bounds(&index(), &steps, &queries)?;
    }
}

#[test]
fn more_groups_than_are_kept_are_refused() {
    let index = index();
    let group = |id| group(id, AttentionWindow::LastBlocks(1));
    for id in 0..flash_indexer_core::groups::GROUPS_MAX as u32 {
        assert_eq!(index.apply_group(RANK, &change(group(id), group_stored(&[1], Tier::External))).stored, 1);
    }
    assert_eq!(index.apply_group(RANK, &change(group(99), group_stored(&[1, 2], Tier::Device))).refused, 2);
    index.apply(RANK, &stored(1, Tier::Device));
    let found = index.find(&locals(1)).get(RANK).map(|found| found.blocks);
    assert_eq!(found, Some(PerTier([0, 0, 0, 1])), "the last group's bits are its own");
}
