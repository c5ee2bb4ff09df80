//! Upper bounds on the steps of each operation, independent of the data that other ranks hold.
//!
//! The tests count steps and measure no time ([`super::writer`] defines a step). Histories scale with the test; the
//! bound does not.

use super::limits::MOVED_BLOCKS_MAX;
use super::{RunIndex, RunLimits};
use crate::{
    AppliedChanges, Block, BlockEvent, DpRank, LocalHash, RemovedCopies, SequenceHash, SharedIndex, Tier, WorkerId,
    WorkerRank,
};

/// Steps that any event may take.
const EVENT_STEPS_MAX: u64 = 2_048;
/// Steps that any maintenance call of an idle writer may take.
const MAINTENANCE_STEPS_MAX: u64 = 8_192;
/// Additional steps for each block of an event.
const BLOCK_STEPS_MAX: u64 = 16;
/// Additional steps of an event that moves blocks of its rank, for each block that it may move.
const MOVE_STEPS_MAX: u64 = 8;

/// An index that checks the step count of every event.
struct CountingIndex {
    index: RunIndex,
    most: u64,
}

impl CountingIndex {
    fn new(index: RunIndex) -> Self {
        Self { index, most: 0 }
    }

    fn steps(&self) -> u64 {
        self.index.writer.lock().steps.taken()
    }

    /// Applies an event and checks its step count.
    #[track_caller]
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) {
        self.apply_within(rank, event, EVENT_STEPS_MAX);
    }

    /// Applies an event that moves blocks of its rank, and checks its step count.
    #[track_caller]
    fn apply_moving(&mut self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        self.apply_within(rank, event, EVENT_STEPS_MAX + MOVE_STEPS_MAX * MOVED_BLOCKS_MAX as u64)
    }

    #[track_caller]
    fn apply_within(&mut self, rank: WorkerRank, event: &BlockEvent, steps_max: u64) -> AppliedChanges {
        let before = self.steps();
        let applied = self.index.apply(rank, event);
        let steps = self.steps() - before;
        let blocks = match event {
            BlockEvent::Stored { blocks, .. } => blocks.len(),
            BlockEvent::Copied { blocks, .. } | BlockEvent::Removed { blocks, .. } => blocks.len(),
            BlockEvent::Cleared => 0,
        };
        let bound = steps_max + BLOCK_STEPS_MAX * blocks as u64;
        assert!(steps <= bound, "{steps} steps for an event of {blocks} blocks, at most {bound}");
        self.most = self.most.max(steps);
        applied
    }

    /// Calls `maintain`, checks its step count and returns whether more work is left.
    #[track_caller]
    fn maintain(&mut self) -> bool {
        let before = self.steps();
        let continues_chain = self.index.maintain();
        // The step counter continues in the compacted copy that replaces the writer.
        let steps = self.steps() - before;
        assert!(
            steps <= MAINTENANCE_STEPS_MAX,
            "{steps} steps for a maintenance call, at most {MAINTENANCE_STEPS_MAX}"
        );
        self.most = self.most.max(steps);
        continues_chain
    }

    #[track_caller]
    fn store(&mut self, rank: WorkerRank, parent: Option<SequenceHash>, blocks: &[Block]) {
        let event = BlockEvent::Stored { tier: Tier::Device, parent, blocks: blocks.to_vec(), copies: 1 };
        self.apply(rank, &event);
    }

    #[track_caller]
    fn remove(&mut self, rank: WorkerRank, blocks: &[Block]) {
        let blocks = blocks.iter().rev().map(|block| block.sequence).collect();
        self.apply(rank, &BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All });
    }

    #[track_caller]
    fn clear(&mut self, rank: WorkerRank) {
        self.apply(rank, &BlockEvent::Cleared);
    }
}

fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) }
}

fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Blocks with the given content and with the sequence hashes of engines that use this seed.
fn chain(seed: u64, content: u64, blocks: std::ops::Range<u64>) -> Vec<Block> {
    let block = |at: u64| {
        let local = mixed(content << 24 | at);
        Block { sequence: SequenceHash(mixed(local ^ mixed(seed)).rotate_left(17)), local: LocalHash(local) }
    };
    blocks.map(block).collect()
}

fn last(blocks: &[Block]) -> Option<SequenceHash> {
    blocks.last().map(|block| block.sequence)
}

const PREFIX: u64 = 128;

/// Ranks that share a prefix, each with its own children; `seed` maps a rank to the seed of its sequence hashes.
fn share_prefix(index: &mut CountingIndex, ranks: u64, children: u64, seed: impl Fn(u64) -> u64) {
    for worker in 0..ranks {
        let prefix = chain(seed(worker), 0, 0..PREFIX);
        index.store(rank(worker), None, &prefix);
        for child in 0..children {
            let blocks = chain(seed(worker), 1 + worker * children + child, 0..4);
            let parent = &prefix[..(PREFIX - child % 16) as usize];
            index.store(rank(worker), last(parent), &blocks);
        }
    }
}

/// Every rank removes the prefix and stores it again, so its children are after a gap for a moment.
fn restore_prefix(index: &mut CountingIndex, ranks: u64, seed: impl Fn(u64) -> u64) {
    for worker in 0..ranks {
        let prefix = chain(seed(worker), 0, 0..PREFIX);
        index.remove(rank(worker), &prefix);
        index.store(rank(worker), None, &prefix);
    }
}

/// Applies events of an unrelated rank until all maintenance for the cleared ranks is done.
fn apply_unrelated_events(index: &mut CountingIndex, events: u64) {
    for event in 0..events {
        let blocks = chain(0, 1 << 39 | event, 0..2);
        index.store(rank(1 << 20), None, &blocks);
        index.remove(rank(1 << 20), &blocks);
    }
}

/// Many ranks with private sequence hashes share one prefix, have their own short child runs, and are then cleared.
#[test]
fn clearing_ranks_with_private_sequence_hashes_costs_bounded_steps() {
    const RANKS: u64 = 60;
    const CHILDREN: u64 = 200;
    let mut index = CountingIndex::new(RunIndex::default());
    share_prefix(&mut index, RANKS, CHILDREN, |worker| worker + 1);
    restore_prefix(&mut index, RANKS, |worker| worker + 1);
    for worker in 0..RANKS {
        index.clear(rank(worker));
        if worker % 3 == 0 {
            apply_unrelated_events(&mut index, 20);
        }
    }
    apply_unrelated_events(&mut index, RANKS * CHILDREN / 4);
    println!("{} steps at most", index.most);
}

/// The same with two groups of ranks whose sequence hashes agree: holders and child runs of the prefix both matter.
#[test]
fn clearing_ranks_of_two_domains_costs_bounded_steps() {
    const RANKS: u64 = 600;
    let seed = |worker: u64| 1 + worker % 2;
    let mut index = CountingIndex::new(RunIndex::default());
    share_prefix(&mut index, RANKS, 10, seed);
    // Each rank ends at another depth, and one of them repeatedly becomes the deepest of its domain.
    for worker in 0..RANKS {
        let prefix = chain(seed(worker), 0, 0..PREFIX);
        for at in (worker % 120..PREFIX).rev() {
            index.remove(rank(worker), &prefix[at as usize..=at as usize]);
        }
    }
    for worker in 0..RANKS {
        index.clear(rank(worker));
    }
    apply_unrelated_events(&mut index, 3_000);
    println!("{} steps at most", index.most);
}

/// A rank with many short prompts is cleared while another rank keeps storing.
#[test]
fn clearing_one_large_rank_costs_bounded_steps() {
    const PROMPTS: u64 = 20_000;
    let limits = RunLimits { removed_blocks_max: 1_000, ..RunLimits::default() };
    let mut index = CountingIndex::new(RunIndex::new(limits));
    for prompt in 0..PROMPTS {
        index.store(rank(1), None, &chain(1, prompt, 0..8));
    }
    index.clear(rank(1));
    apply_unrelated_events(&mut index, 2_000);
    index.clear(rank(1 << 20));
    println!("{} steps at most", index.most);
}

/// Every rank removes all blocks of its chains except the last ones.
#[test]
fn removing_all_blocks_but_the_chain_ends_costs_bounded_steps() {
    const CHAINS: u64 = 2_000;
    let limits = RunLimits { removed_blocks_max: 10_000, ..RunLimits::default() };
    let mut index = CountingIndex::new(RunIndex::new(limits));
    for number in 0..CHAINS {
        let blocks = chain(1, number, 0..32);
        index.store(rank(number % 7), None, &blocks);
        index.remove(rank(number % 7), &blocks[..31]);
    }
    println!("{} steps at most", index.most);
}

/// A rank removes the held end of a long chain whose other blocks no rank holds; the removal frees the whole chain.
#[test]
fn removing_the_end_of_an_unheld_chain_costs_bounded_steps() {
    const LINKS: u64 = 4_000;
    let mut index = CountingIndex::new(RunIndex::default());
    let mut parent = None;
    let mut links = Vec::new();
    for link in 0..LINKS {
        // Each link leaves the previous run after one block, so that each link is a run.
        let blocks = chain(1, link, 0..2);
        index.store(rank(1), parent, &blocks);
        parent = last(&blocks[..1]);
        links.push(blocks);
    }
    let kept = links.pop().expect("there are links");
    for blocks in &links {
        index.remove(rank(1), blocks);
    }
    index.remove(rank(1), &kept);
    apply_unrelated_events(&mut index, LINKS);
    println!("{} steps at most", index.most);
}

/// Ranks join and leave while every rank has private sequence hashes.
#[test]
fn joining_many_private_domains_costs_bounded_steps() {
    const RANKS: u64 = 6_000;
    let mut index = CountingIndex::new(RunIndex::default());
    for worker in 0..RANKS {
        index.store(rank(worker), None, &chain(worker + 1, 0, 0..4));
    }
    for worker in 0..RANKS {
        index.store(rank(RANKS + worker), Some(SequenceHash(worker)), &chain(RANKS + worker + 1, 0, 0..4));
    }
    println!("{} steps at most", index.most);
}

/// Most blocks are removed from an index that is large enough for compaction.
#[test]
fn removing_most_of_a_large_index_costs_bounded_steps() {
    const PROMPTS: u64 = 30_000;
    let mut index = CountingIndex::new(RunIndex::default());
    let prompt = |number: u64| chain(1, number, 0..64);
    for number in 0..PROMPTS {
        index.store(rank(number % 5), None, &prompt(number));
    }
    for number in (0..PROMPTS).filter(|number| number % 6 != 0) {
        index.remove(rank(number % 5), &prompt(number));
    }
    apply_unrelated_events(&mut index, 500);
    while index.maintain() {}
    let memory = index.index.memory_bytes().expect("the index reports its size");
    assert!(memory < 16 << 20, "{memory} bytes remain");
    let prompt: Vec<LocalHash> = prompt(6).iter().map(|block| block.local).collect();
    assert_eq!(index.index.find(&prompt).get(rank(1)).map(|found| found.longest()), Some(64));
    println!("{} steps at most", index.most);
}

/// One rank remains of a large index. The index copies that rank and reclaims the old memory in parts, also while
/// events of the rank are applied.
#[test]
fn compacting_the_last_rank_of_a_large_index_costs_bounded_steps() {
    const PROMPTS: u64 = 105_000;
    const KEPT: u64 = 15_000;
    let mut index = CountingIndex::new(RunIndex::default());
    let prompt = |number: u64| chain(1, number, 0..8);
    for number in 0..PROMPTS {
        index.store(rank(2), None, &prompt(KEPT + number));
        if number < KEPT {
            index.store(rank(1), None, &prompt(number));
        }
    }
    let full = index.index.memory_bytes().expect("the index reports its size");
    index.clear(rank(2));
    let mut turns = 0;
    while index.maintain() {
        let changed = prompt(turns % KEPT);
        if turns < 3_000 && turns % 3 == 0 {
            index.remove(rank(1), &changed);
            index.store(rank(1), None, &changed);
        }
        turns += 1;
    }
    let left = index.index.memory_bytes().expect("the index reports its size");
    assert!(left < full / 4, "{left} of {full} bytes remain");
    for number in (0..KEPT).step_by(97) {
        let prompt: Vec<LocalHash> = prompt(number).iter().map(|block| block.local).collect();
        assert_eq!(index.index.find(&prompt).get(rank(1)).map(|found| found.longest()), Some(8));
    }
    println!("{} steps at most, {turns} turns", index.most);
}

/// A bounded index evicts runs for new blocks, including runs that a whole fleet holds.
#[test]
fn evicting_runs_that_a_fleet_holds_costs_bounded_steps() {
    const RANKS: u64 = 300;
    // Memory for about 2,100 runs; checkpoints take 64 KiB of it.
    let index = RunIndex::bounded(RunLimits::default(), (4 << 20) + (80 << 10)).expect("enough for an index");
    let mut index = CountingIndex::new(index);
    for prompt in 0..6_000 {
        for worker in 0..RANKS {
            if worker % 40 == 0 || prompt % 20 == 0 {
                index.store(rank(worker), None, &chain(1, prompt, 0..32));
            }
        }
    }
    let bound = index.index.memory_limit().expect("it is bounded");
    assert!(bound.evicted_blocks > 0, "{bound:?}");
    println!("{} steps at most", index.most);
}

/// Ranks with various seeds store, remove, copy and are cleared below a few shared prefixes, in random order.
#[test]
fn any_event_of_many_ranks_costs_bounded_steps() {
    const RANKS: u64 = 400;
    let limits = RunLimits { removed_blocks_max: 2_000, ..RunLimits::default() };
    let mut index = CountingIndex::new(RunIndex::new(limits));
    let mut state = 1_u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    for _ in 0..60_000 {
        let worker = below(RANKS);
        // A third of the ranks share one seed, a third share a few seeds, the others have private seeds.
        let seed = match worker % 3 {
            0 => 1,
            1 => 2 + worker % 5,
            _ => 10 + worker,
        };
        let prefix = chain(seed, below(3), 0..96);
        let end = below(96) as usize + 1;
        match below(16) {
            0..6 => index.store(rank(worker), None, &prefix[..end]),
            6..10 => {
                let blocks = chain(seed, 100 + below(2_000), 0..3);
                index.store(rank(worker), last(&prefix[..end]), &blocks);
            }
            10..13 => index.remove(rank(worker), &prefix[below(end as u64) as usize..end]),
            13 => {
                let blocks = prefix[..end].iter().map(|block| block.sequence).collect();
                index.apply(rank(worker), &BlockEvent::Copied { tier: Tier::Host, blocks });
            }
            14 => index.store(rank(worker), None, &prefix),
            _ => index.clear(rank(worker)),
        }
    }
    println!("{} steps at most", index.most);
}

fn stored(parent: Option<SequenceHash>, blocks: &[Block]) -> BlockEvent {
    BlockEvent::Stored { tier: Tier::Device, parent, blocks: blocks.to_vec(), copies: 1 }
}

/// The same block with other content.
fn redefined(block: Block, content: u64) -> Block {
    Block { local: LocalHash(mixed(content)), ..block }
}

fn depth(index: &CountingIndex, of: WorkerRank, blocks: &[Block]) -> u32 {
    let query: Vec<LocalHash> = blocks.iter().map(|block| block.local).collect();
    index.index.find(&query).get(of).map_or(0, |found| found.longest())
}

/// A rank gives the first block of a chain other content, once or for each of its blocks in turn.
#[test]
fn redefining_the_blocks_of_a_long_chain_costs_bounded_steps() {
    for blocks in [50, MOVED_BLOCKS_MAX as u64 - 100, 40_000] {
        let mut index = CountingIndex::new(RunIndex::default());
        let mut long = chain(1, 0, 0..blocks);
        index.store(rank(1), None, &long);
        let before = index.steps();
        let mut refused = 0;
        for at in 0..2_000.min(blocks as usize) {
            let block = redefined(long[at], 1 << 50 | at as u64);
            let parent = at.checked_sub(1).map(|at| long[at].sequence);
            refused += index.apply_moving(rank(1), &stored(parent, &[block])).moves_refused;
            long[at] = block;
            if refused == 0 {
                assert_eq!(u64::from(depth(&index, rank(1), &long)), blocks, "{at}");
            }
        }
        let steps = index.steps() - before;
        assert_eq!(refused > 0, blocks > 50, "{refused} of {blocks} blocks refused");
        let bound = MOVE_STEPS_MAX * MOVED_BLOCKS_MAX as u64 + 2_000 * 64;
        assert!(steps <= bound, "{steps} steps for all events, at most {bound}");
        println!("{} steps at most, {steps} in total, {refused} blocks refused", index.most);
    }
}

/// A rank gives the parent of many short chains other content.
#[test]
fn redefining_the_parent_of_many_chains_costs_bounded_steps() {
    const CHAINS: u64 = 40_000;
    let mut index = CountingIndex::new(RunIndex::default());
    let parent = chain(1, 0, 0..1)[0];
    index.store(rank(1), None, &[parent]);
    for number in 1..=CHAINS {
        index.store(rank(1), Some(parent.sequence), &chain(1, number, 0..1));
    }
    let applied = index.apply_moving(rank(1), &stored(None, &[redefined(parent, 1 << 50)]));
    assert_eq!((applied.refused, applied.moves_refused), (CHAINS + 2, CHAINS + 2), "the block of the event included");
    assert_eq!(index.index.size(rank(1)).blocks, 0);
    apply_unrelated_events(&mut index, CHAINS / 8);
    assert_eq!(index.index.memory().runs, 0, "what was dropped is freed");
    println!("{} steps at most", index.most);
}

/// A parent is stored after many of its children, or after a long chain that follows it.
#[test]
fn storing_a_parent_after_its_descendants_costs_bounded_steps() {
    const BLOCKS: u64 = 40_000;
    for is_chain in [false, true] {
        let mut index = CountingIndex::new(RunIndex::default());
        let parent = chain(1, 0, 0..1)[0];
        let below: Vec<Block> = match is_chain {
            true => chain(1, 1, 0..BLOCKS),
            false => (1..=BLOCKS).map(|number| chain(1, number, 0..1)[0]).collect(),
        };
        let mut follows = parent.sequence;
        for &block in &below {
            index.store(rank(1), Some(follows), &[block]);
            if is_chain {
                follows = block.sequence;
            }
        }
        let size = |index: &CountingIndex| index.index.size(rank(1));
        assert_eq!(size(&index).waiting as u64, BLOCKS);
        assert_eq!(index.apply_moving(rank(1), &stored(None, &[parent])).refused, 0);
        assert!(size(&index).waiting > 0 && size(&index).blocks as u64 == BLOCKS + 1);
        while size(&index).waiting > 0 {
            let before = size(&index).waiting;
            index.maintain();
            assert!(size(&index).waiting < before, "each call indexes some");
        }
        let path: Vec<Block> = std::iter::once(parent).chain(below.iter().copied()).collect();
        assert_eq!(depth(&index, rank(1), &path), if is_chain { path.len() as u32 } else { 2 });
        assert_eq!(size(&index).blocks as u64, BLOCKS + 1);
        println!("{} steps at most", index.most);
    }
}

/// Two ranks with the same sequence hashes; one of them contradicts the other after it has stored much.
#[test]
fn contradicting_a_shared_domain_costs_bounded_steps() {
    const PROMPTS: u64 = 40_000;
    let mut index = CountingIndex::new(RunIndex::default());
    for worker in [1, 2] {
        for number in 0..PROMPTS {
            index.store(rank(worker), None, &chain(1, number, 0..1));
        }
    }
    // Another sequence hash for known content: the rank keeps everything.
    for number in 0..100 {
        let other = chain(2, number, 0..1);
        let applied = index.apply_moving(rank(1), &stored(None, &other));
        assert_eq!((applied.stored, applied.refused), (1, 0));
        assert_eq!(depth(&index, rank(1), &other), 1);
    }
    assert_eq!(index.index.size(rank(1)).blocks as u64, PROMPTS + 100);
    // Other content for a known sequence hash: the rank is dropped.
    let redefined = redefined(chain(1, 7, 0..1)[0], 1 << 50);
    let applied = index.apply_moving(rank(1), &stored(None, &[redefined]));
    assert_eq!(applied.moves_refused, PROMPTS + 101);
    assert_eq!(depth(&index, rank(1), &chain(1, 9, 0..1)), 0);
    assert_eq!(depth(&index, rank(2), &chain(1, 7, 0..1)), 1);
    println!("{} steps at most", index.most);
}
