//! Random streams of ranks with several cache groups, and the comparison of an index with the brute-force rule.
#![allow(dead_code, reason = "each test uses a part of it")]

use flash_indexer_core::groups::{
    AttentionWindow, BlockLink, ClearScope, ClearedGroups, GroupBlockSize, GroupChange, GroupEvent, GroupId,
    GroupedIndex, RankEvent, SecondaryGroup,
};
use flash_indexer_core::hashing::{BlockSize, HashVariant, LocalHasher, next_sequence_hash};
use flash_indexer_core::oracle::GroupedOracle;
use flash_indexer_core::{
    BlockEvent, DpRank, LocalHash, MatchScores, PerTier, RankMatch, RemovedCopies, SequenceHash, SharedIndex, Tier,
    WorkerId, WorkerRank,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

use crate::support::{self, Step};

pub(crate) fn change(group: SecondaryGroup, event: GroupEvent) -> GroupChange {
    GroupChange { group, event }
}

#[derive(Debug, Clone)]
pub(crate) enum GroupedStep {
    Primary(Step),
    Secondary(WorkerRank, GroupChange),
    ClearedScope(WorkerRank, ClearScope),
    /// An event that adds no copy to held blocks.
    Refresh(WorkerRank, RankEvent),
}

/// Tokens in a registered block: the least size that has two smaller sizes as parts.
const BLOCK_TOKENS: u32 = 4;

fn block_size() -> BlockSize {
    BlockSize::new(BLOCK_TOKENS).expect("not zero")
}

/// A size of `blocks` registered blocks.
pub(crate) fn size(blocks: u32) -> GroupBlockSize {
    size_of(blocks * BLOCK_TOKENS)
}

/// A size of `tokens` tokens.
pub(crate) fn size_of(tokens: u32) -> GroupBlockSize {
    GroupBlockSize::of(tokens, block_size()).expect("a multiple or a part")
}

/// Paths that are long enough for several large blocks, most of which are the start of a single one.
fn long_path() -> impl Strategy<Value = Vec<LocalHash>> {
    vec(prop_oneof![12 => Just(LocalHash(0)), 1 => Just(LocalHash(1))], 1..13)
}

fn any_path() -> impl Strategy<Value = Vec<LocalHash>> {
    prop_oneof![support::path(), long_path()]
}

/// Paths of queries.
pub(crate) fn queries() -> impl Strategy<Value = Vec<Vec<LocalHash>>> {
    (vec(support::path(), 9), vec(long_path(), 5)).prop_map(|(paths, long)| [paths, long].concat())
}

/// Tokens of the blocks of a path.
fn tokens_of(path: &[LocalHash]) -> Vec<u32> {
    // Two blocks in turn have the same first half.
    let token = |local: u32, at| if at < BLOCK_TOKENS / 2 { local / 2 } else { local };
    path.iter().flat_map(|local| (0..BLOCK_TOKENS).map(move |at| token(local.0 as u32, at))).collect()
}

/// Replaces the local hashes of a path by those of its tokens.
fn hashed(path: &[LocalHash]) -> Vec<LocalHash> {
    let mut hasher = LocalHasher::default();
    path.iter().map(|&local| hasher.tokens(HashVariant::default(), &tokens_of(&[local]))).collect()
}

/// The same for the blocks of an event.
fn hashed_event(event: &BlockEvent) -> BlockEvent {
    let mut event = event.clone();
    if let BlockEvent::Stored { blocks, .. } = &mut event {
        blocks.iter_mut().for_each(|block| block.local = hashed(&[block.local])[0]);
    }
    event
}

fn hashed_step(step: &GroupedStep) -> GroupedStep {
    match step {
        GroupedStep::Primary(Step::Event(rank, event)) => GroupedStep::Primary(Step::Event(*rank, hashed_event(event))),
        GroupedStep::Refresh(rank, RankEvent::Primary(event)) => {
            GroupedStep::Refresh(*rank, RankEvent::Primary(hashed_event(event)))
        }
        step => step.clone(),
    }
}

/// Streams in which each prefix has one name in a rank.
pub(crate) fn consistent_stream() -> impl Strategy<Value = Vec<GroupedStep>> {
    let primary = prop_oneof![5 => support::consistent_step(), 3 => support::chained_on(long_path())];
    let primary = primary.prop_map(GroupedStep::Primary).boxed();
    sizes().prop_flat_map(move |sizes| {
        let steps = prop_oneof![
            8 => primary.clone(), 8 => secondary_step(sizes), 1 => cleared_scope(), 2 => refresh(sizes)
        ];
        vec(steps, 1..60)
    })
}

/// Streams that include contradicting events.
pub(crate) fn any_stream() -> impl Strategy<Value = Vec<GroupedStep>> {
    let primary = support::stream(12).prop_map(|steps| steps.into_iter().map(GroupedStep::Primary).collect());
    let primary = primary.boxed();
    let parts = sizes().prop_flat_map(move |sizes| {
        let secondary = prop_oneof![8 => secondary_step(sizes), 1 => cleared_scope()].prop_map(|step| vec![step]);
        vec(prop_oneof![1 => primary.clone(), 4 => secondary], 1..20)
    });
    parts.prop_map(|parts: Vec<Vec<_>>| parts.concat())
}

/// Block sizes of the groups of all ranks of a stream, in tokens.
type Sizes = [u32; 3];

fn any_size() -> impl Strategy<Value = u32> + Clone {
    prop_oneof![2 => Just(BLOCK_TOKENS), 3 => (2..=4u32).prop_map(|blocks| blocks * BLOCK_TOKENS), 3 => Just(2), 2 => Just(1)]
}

fn sizes() -> impl Strategy<Value = Sizes> {
    [any_size(), any_size(), any_size()]
}

fn group(sizes: Sizes) -> impl Strategy<Value = SecondaryGroup> {
    let window = |id| match id {
        0 => AttentionWindow::LastBlocks(1),
        1 => AttentionWindow::LastBlocks(3),
        _ => AttentionWindow::Full,
    };
    let usual = (0..3u32).prop_map(move |id| (id, window(id)));
    let changed = (0..3u32, 0..7u32).prop_map(|(id, blocks)| (id, AttentionWindow::LastBlocks(blocks)));
    let of_another_size = (0..3usize, any_size());
    let sizes = prop_oneof![30 => Just(sizes), 1 => of_another_size.prop_map(move |(id, tokens)| {
        let mut sizes = sizes;
        sizes[id] = tokens;
        sizes
    })];
    (prop_oneof![9 => usual, 1 => changed], sizes).prop_map(|((id, window), sizes)| SecondaryGroup {
        id: GroupId(id),
        window,
        size: size_of(sizes[id as usize]),
    })
}

/// Names of a path's blocks in a group: those of registered blocks, with those of smaller blocks inside them.
fn names_in(group: SecondaryGroup, rank: WorkerRank, path: &[LocalHash]) -> Vec<SequenceHash> {
    let (names, parts, tokens) = (support::sequences(rank, path), group.size.parts() as usize, tokens_of(path));
    let part_tokens = BLOCK_TOKENS as usize / parts;
    let inside = |block: usize, part: usize| {
        let before = block.checked_sub(1).map(|before| names[before]);
        let start = block * BLOCK_TOKENS as usize;
        let content = LocalHasher::default().tokens(HashVariant::default(), &tokens[start..start + part * part_tokens]);
        // Names of different ranks, and of registered blocks, are different.
        next_sequence_hash(Some(before.unwrap_or(SequenceHash(rank.worker.0 * 2 + u64::from(rank.dp_rank.0)))), content)
    };
    let block = |at: usize| (1..parts).map(move |part| inside(at, part)).chain([names[at]]).collect::<Vec<_>>();
    (0..path.len()).flat_map(block).collect()
}

/// Names of blocks of a chain, or any names.
fn named(group: SecondaryGroup, rank: WorkerRank) -> impl Strategy<Value = Vec<SequenceHash>> {
    let of_chain = any_path().prop_flat_map(move |path| {
        let names = names_in(group, rank, &path);
        let count = names.len();
        prop_oneof![Just(names.clone()), subsequence(names, 0..=count)]
    });
    prop_oneof![4 => of_chain, 1 => vec(support::any_hash(), 0..4)]
}

/// Links of a chain, all or some.
fn links(group: SecondaryGroup, rank: WorkerRank) -> impl Strategy<Value = Vec<BlockLink>> {
    let link = |block, before| BlockLink { block, before };
    any_path().prop_flat_map(move |path| {
        let names = names_in(group, rank, &path);
        let before = std::iter::once(None).chain(names.iter().copied().map(Some));
        let links: Vec<_> = names.iter().copied().zip(before).map(|(block, before)| link(block, before)).collect();
        let count = links.len();
        prop_oneof![3 => Just(links.clone()), 1 => subsequence(links, 0..=count)]
    })
}

fn secondary_step(sizes: Sizes) -> impl Strategy<Value = GroupedStep> {
    let event = |group, rank| {
        let stored = (support::tier(), named(group, rank), support::copies())
            .prop_map(|(tier, blocks, copies)| GroupEvent::Stored { tier, blocks, copies });
        let removed = (support::tier(), named(group, rank), support::removed_copies())
            .prop_map(|(tier, blocks, copies)| GroupEvent::Removed { tier, blocks, copies });
        prop_oneof![3 => stored, 1 => removed, 2 => links(group, rank).prop_map(GroupEvent::Linked)]
    };
    (support::rank(), group(sizes)).prop_flat_map(move |(rank, group)| {
        event(group, rank).prop_map(move |event| GroupedStep::Secondary(rank, change(group, event)))
    })
}

fn refresh(sizes: Sizes) -> impl Strategy<Value = GroupedStep> {
    prop_oneof![support::chained().prop_map(GroupedStep::Primary), secondary_step(sizes)].prop_map(|step| match step {
        GroupedStep::Primary(Step::Event(rank, event)) => GroupedStep::Refresh(rank, RankEvent::Primary(event)),
        GroupedStep::Secondary(rank, change) => GroupedStep::Refresh(rank, RankEvent::Secondary(change)),
        step => step,
    })
}

fn cleared_scope() -> impl Strategy<Value = GroupedStep> {
    let groups = prop_oneof![
        Just(ClearedGroups::All),
        Just(ClearedGroups::Primary),
        (0..3u32).prop_map(|id| ClearedGroups::Secondary(GroupId(id)))
    ];
    (support::rank(), proptest::option::of(support::tier()), groups)
        .prop_map(|(rank, tier, groups)| GroupedStep::ClearedScope(rank, ClearScope { tier, groups }))
}

/// Applies a stream to an index and to the oracle, and compares them after every step.
fn drive(
    steps: &[GroupedStep],
    index: &GroupedIndex,
    mut compare: impl FnMut(&GroupedOracle) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut oracle = GroupedOracle::new(block_size());
    for step in steps {
        match &hashed_step(step) {
            GroupedStep::Primary(step) => {
                step.apply(index);
                match step {
                    Step::Event(rank, event) => oracle.apply(*rank, event),
                    Step::ClearRank(rank) => oracle.clear_rank(*rank),
                    Step::RemoveWorker(worker) => {
                        all_ranks().filter(|rank| rank.worker == *worker).for_each(|rank| oracle.clear_rank(rank));
                    }
                }
            }
            GroupedStep::Secondary(rank, change) => {
                index.apply_group(*rank, change);
                oracle.apply_group(*rank, change);
            }
            GroupedStep::Refresh(rank, event) => {
                for event in index.without_held(*rank, event.clone()) {
                    index.apply_event(*rank, &event);
                }
                match event {
                    RankEvent::Primary(event) => oracle.refresh(*rank, event),
                    RankEvent::Secondary(change) => oracle.refresh_group(*rank, change),
                    RankEvent::ClearedScope(scope) => oracle.clear_scope(*rank, *scope),
                }
            }
            GroupedStep::ClearedScope(rank, scope) => {
                index.apply_event(*rank, &RankEvent::ClearedScope(*scope));
                oracle.clear_scope(*rank, *scope);
            }
        }
        compare(&oracle)?;
    }
    Ok(())
}

/// The oracle's answer for a prompt that continues for a part of a block after the blocks of a path, in blocks.
fn usable(oracle: &GroupedOracle, path: &[LocalHash]) -> MatchScores {
    let prompt = [&tokens_of(path)[..], &[9]].concat();
    let in_blocks = |tokens: PerTier<u32>| PerTier(tokens.0.map(|tokens| tokens / BLOCK_TOKENS));
    let ranks = oracle.find(&prompt).into_iter();
    MatchScores { ranks: ranks.map(|(rank, tokens)| RankMatch { rank, blocks: in_blocks(tokens) }).collect() }
}

/// Checks that answers over a consistent stream are those of the oracle, that a dump restores them, and that an index
/// without copies is empty.
pub(crate) fn check(
    build: impl Fn() -> Box<dyn SharedIndex>,
    steps: &[GroupedStep],
    queries: &[Vec<LocalHash>],
) -> Result<(), TestCaseError> {
    let index = GroupedIndex::new(build());
    drive(steps, &index, |oracle| {
        for path in queries {
            prop_assert_eq!(index.find(&hashed(path)).sorted(), usable(oracle, path).sorted(), "{:?}", path);
        }
        // One query a stream is enough: there are many streams.
        queries.first().map_or(Ok(()), |path| check_cuts(&index, oracle, &hashed(path)))
    })?;
    let queries: Vec<_> = queries.iter().map(|path| hashed(path)).collect();
    let restored = GroupedIndex::new(build());
    for rank in all_ranks() {
        for event in dump_events(&index, rank) {
            restored.apply_event(rank, &event);
        }
    }
    for query in &queries {
        prop_assert_eq!(restored.find(query).sorted(), index.find(query).sorted(), "{:?} restored", query);
    }
    all_ranks().for_each(|rank| remove_everything(&index, rank));
    for query in &queries {
        prop_assert!(index.find(query).ranks.is_empty());
    }
    prop_assert!(index.ranks().is_empty());
    Ok(())
}

/// Checks that the reported cuts explain every answer.
fn check_cuts(index: &GroupedIndex, oracle: &GroupedOracle, query: &[LocalHash]) -> Result<(), TestCaseError> {
    let (found, prompt, indexed) = (index.find(query), index.find_prompt(query), oracle.find_indexed(query));
    for (order, count) in support::orders().into_iter().zip([1, 2, 3]) {
        let deepest = index.find_deepest(query, count, &order);
        support::check_deepest(deepest, &found, count, &order, query)?;
        let deepest = index.find_prompt_deepest(query, count, &order);
        support::check_deepest(deepest, &prompt, count, &order, query)?;
    }
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

/// Checks that every answer is at least the oracle's and at most the depth of the primary group.
pub(crate) fn check_bounds(
    index: &GroupedIndex,
    steps: &[GroupedStep],
    queries: &[Vec<LocalHash>],
) -> Result<(), TestCaseError> {
    let blocks = |scores: &MatchScores, rank| scores.get(rank).map(|found| found.blocks.0).unwrap_or_default();
    drive(steps, index, |oracle| {
        for path in queries {
            let query = &hashed(path);
            let (found, least, most) = (index.find(query), usable(oracle, path), oracle.find_indexed(query));
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

/// Stored events for all groups of a rank.
pub(crate) fn dump_events(index: &GroupedIndex, rank: WorkerRank) -> Vec<RankEvent> {
    let secondary = index.secondary_stores(rank).into_iter().map(RankEvent::Secondary);
    secondary.chain(index.dump(rank).into_iter().map(RankEvent::Primary)).collect()
}

fn remove_everything(index: &GroupedIndex, rank: WorkerRank) {
    for tier in Tier::ALL {
        let blocks = index.held(rank).iter().map(|block| block.sequence).collect();
        index.apply(rank, &BlockEvent::Removed { tier, blocks, copies: RemovedCopies::All });
    }
    for event in dump_events(index, rank) {
        let RankEvent::Secondary(GroupChange { group, event }) = event else { continue };
        let GroupEvent::Stored { tier, blocks, .. } = event else { continue };
        index.apply_group(rank, &change(group, GroupEvent::Removed { tier, blocks, copies: RemovedCopies::All }));
    }
}
