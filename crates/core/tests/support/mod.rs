//! Random event streams over small domains, so that all interactions occur, and comparisons of indexes.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::Arc;

use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{
    AppliedChanges, Block, BlockEvent, DeepestMatches, DpRank, HeldBlock, LocalHash, MatchScores, RankOrder,
    RemovedCopies, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// A configuration of `cases` cases, or of `PROPTEST_CASES` if that is larger.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    let is_asked_for = std::env::var_os("PROPTEST_CASES").is_some();
    let cases = if is_asked_for { config.cases.max(cases) } else { cases };
    ProptestConfig { cases, ..config }
}

/// One step of a stream.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Event(WorkerRank, BlockEvent),
    ClearRank(WorkerRank),
    RemoveWorker(WorkerId),
}

impl Step {
    pub(crate) fn apply(&self, index: &dyn SharedIndex) -> AppliedChanges {
        match self {
            Self::Event(rank, event) => return index.apply(*rank, event),
            Self::ClearRank(rank) => index.clear_rank(*rank),
            Self::RemoveWorker(worker) => index.remove_worker(*worker),
        }
        AppliedChanges::default()
    }
}

/// Compares all answers of two indexes.
pub(crate) fn check_equal(
    index: &dyn SharedIndex,
    expected: &dyn SharedIndex,
    queries: &[Vec<LocalHash>],
) -> Result<(), TestCaseError> {
    let orders = orders();
    for (at, query) in queries.iter().enumerate() {
        let found = index.find(query).sorted();
        prop_assert_eq!(&found, &expected.find(query).sorted(), "query {:?}", query);
        // Over all queries, most pairs of an order and a count.
        let (order, count) = (&orders[at % orders.len()], 1 + at % 5);
        check_deepest(index.find_deepest(query, count, order), &found, count, order, query)?;
        let tiers = index.fastest_tiers(query, &found.ranks);
        prop_assert_eq!(&tiers, &expected.fastest_tiers(query, &found.ranks), "tiers of query {:?}", query);
        for (tiers, found) in tiers.iter().zip(&found.ranks) {
            prop_assert_eq!(tiers.0.iter().sum::<u32>(), found.longest(), "tiers of query {:?}", query);
        }
    }
    check_equal_state(index, expected)
}

/// Orders of all ranks of [`rank`], of some of them, and of ranks and further ranks of a worker.
pub(crate) fn orders() -> [Arc<RankOrder>; 3] {
    let rank = |worker, dp_rank| WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(dp_rank) };
    let orders = [
        RankOrder::new([rank(1, 1), rank(0, 0), rank(1, 0), rank(0, 1)], []),
        RankOrder::new([rank(1, 0), rank(0, 1)], []),
        RankOrder::new([rank(1, 0), rank(0, 1)], [WorkerId(0)]),
    ];
    orders.map(Arc::new)
}

/// Compares the deepest ranks of an answer with the complete answer.
pub(crate) fn check_deepest(
    deepest: DeepestMatches,
    complete: &MatchScores,
    count: usize,
    order: &RankOrder,
    query: &[LocalHash],
) -> Result<(), TestCaseError> {
    let longest = complete.ranks.iter().map(|found| found.longest()).max().unwrap_or(0);
    prop_assert_eq!(deepest.longest, longest, "longest match of {:?}", query);
    let place = |rank| order.position(rank).map(|at| at + 1).or(order.is_unlisted(rank).then_some(0));
    let mut expected: Vec<_> = complete.ranks.iter().filter(|found| place(found.rank).is_some()).copied().collect();
    expected.sort_by_key(|found| {
        let [device, .., any] = found.blocks.0;
        (std::cmp::Reverse((device, any)), place(found.rank))
    });
    expected.truncate(count);
    let deepest = MatchScores { ranks: deepest.ranks }.sorted();
    prop_assert_eq!(deepest, MatchScores { ranks: expected }.sorted(), "deepest {} of {:?}", count, query);
    Ok(())
}

/// Compares the blocks that two indexes hold.
pub(crate) fn check_equal_state(index: &dyn SharedIndex, expected: &dyn SharedIndex) -> Result<(), TestCaseError> {
    prop_assert_eq!(ranks(index), ranks(expected));
    for rank in expected.ranks() {
        prop_assert_eq!(held(index, rank), held(expected, rank));
        let (size, expected) = (index.size(rank), expected.size(rank));
        prop_assert_eq!((size.blocks, size.by_tier), (expected.blocks, expected.by_tier));
    }
    Ok(())
}

fn held(index: &dyn SharedIndex, rank: WorkerRank) -> Vec<HeldBlock> {
    let mut held = index.held(rank);
    held.sort_by_key(|block| block.sequence);
    held
}

fn ranks(index: &dyn SharedIndex) -> Vec<WorkerRank> {
    let mut ranks = index.ranks();
    ranks.sort();
    ranks
}

/// Applies the dump of one index to another.
pub(crate) fn restore(from: &dyn SharedIndex, to: &dyn SharedIndex) {
    for rank in from.ranks() {
        for event in from.dump(rank) {
            to.apply(rank, &event);
        }
    }
}

/// Paths of a query or a chain: local hashes over a tiny alphabet repeat in many positions.
pub(crate) fn path() -> impl Strategy<Value = Vec<LocalHash>> {
    vec((0..3u64).prop_map(LocalHash), 1..7)
}

/// Streams of up to `steps_max` steps.
pub(crate) fn stream(steps_max: usize) -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..steps_max)
}

fn step() -> impl Strategy<Value = Step> {
    let contradiction = (rank(), contradicting()).prop_map(|(rank, event)| Step::Event(rank, event));
    prop_oneof![33 => consistent_step(), 6 => contradiction]
}

/// A step of a stream in which every sequence hash identifies one prefix, and every prefix of a rank has one sequence
/// hash.
pub(crate) fn consistent_step() -> impl Strategy<Value = Step> {
    let event = |strategy: BoxedStrategy<BlockEvent>| {
        (rank(), strategy).prop_map(|(rank, event)| Step::Event(rank, event)).boxed()
    };
    prop_oneof![
        12 => chained(),
        10 => removed_from_a_chain(),
        4 => event((tier(), vec(any_hash(), 1..4), removed_copies()).prop_map(|(tier, blocks, copies)| BlockEvent::Removed { tier, blocks, copies }).boxed()),
        4 => event((tier(), vec(any_hash(), 1..4)).prop_map(|(tier, blocks)| BlockEvent::Copied { tier, blocks }).boxed()),
        1 => event(Just(BlockEvent::Cleared).boxed()),
        1 => rank().prop_map(Step::ClearRank),
        1 => rank().prop_map(|rank| Step::RemoveWorker(rank.worker)),
    ]
}

pub(crate) fn rank() -> impl Strategy<Value = WorkerRank> {
    (0..2u64, 0..2u32).prop_map(|(worker, dp_rank)| WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(dp_rank) })
}

pub(crate) fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![4 => Just(Tier::Device), 2 => Just(Tier::Host), 1 => Just(Tier::Disk), 1 => Just(Tier::External)]
}

/// Sequence hashes of a path's blocks: one worker has a private hash seed, the others share one.
pub(crate) fn sequences(rank: WorkerRank, path: &[LocalHash]) -> Vec<SequenceHash> {
    let seed = rank.worker.0;
    sequence_hashes(path).map(|hash| SequenceHash(hash.0.wrapping_add(seed * 1000))).collect()
}

/// Events of a correct engine: part of a chain whose sequence hashes follow from its content. A part that starts in
/// the middle makes gaps and unknown parents.
pub(crate) fn chained() -> impl Strategy<Value = Step> {
    chained_on(path())
}

/// The same, of chains with these paths.
pub(crate) fn chained_on(path: impl Strategy<Value = Vec<LocalHash>>) -> impl Strategy<Value = Step> {
    (rank(), tier(), path, 0..3usize, copies()).prop_map(|(rank, tier, path, from, copies)| {
        let sequences = sequences(rank, &path);
        let from = from.min(path.len() - 1);
        let parent = from.checked_sub(1).map(|at| sequences[at]);
        let blocks = (from..path.len()).map(|at| Block { sequence: sequences[at], local: path[at] }).collect();
        Step::Event(rank, BlockEvent::Stored { tier, parent, blocks, copies })
    })
}

fn removed_from_a_chain() -> impl Strategy<Value = Step> {
    (rank(), tier(), path(), 0..6usize, removed_copies()).prop_map(|(rank, tier, path, from, copies)| {
        let sequences = sequences(rank, &path);
        let blocks = sequences[from.min(path.len() - 1)..].iter().rev().copied().collect();
        Step::Event(rank, BlockEvent::Removed { tier, blocks, copies })
    })
}

/// Contradictions that no correct engine publishes: few sequence hashes, which are redefined, follow each other in
/// circles, and give one prefix two hashes.
fn contradicting() -> impl Strategy<Value = BlockEvent> {
    let block = (any_hash(), 0..3u64).prop_map(|(sequence, local)| Block { sequence, local: LocalHash(local) });
    (tier(), proptest::option::of(any_hash()), vec(block, 1..4), copies())
        .prop_map(|(tier, parent, blocks, copies)| BlockEvent::Stored { tier, parent, blocks, copies })
}

/// One of a few sequence hashes; small ones also identify chains of one block.
pub(crate) fn any_hash() -> impl Strategy<Value = SequenceHash> {
    (0..8u64).prop_map(SequenceHash)
}

pub(crate) fn copies() -> impl Strategy<Value = u32> {
    prop_oneof![20 => Just(1u32), 2 => 2..4u32, 1 => Just(0), 1 => Just(u32::MAX)]
}

pub(crate) fn removed_copies() -> impl Strategy<Value = RemovedCopies> {
    prop_oneof![
        8 => Just(RemovedCopies::One),
        2 => Just(RemovedCopies::All),
        2 => (0..3u32).prop_map(RemovedCopies::AllBut),
    ]
}
