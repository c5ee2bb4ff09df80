//! Blocks that a rank holds, and the events that recreate them.

use crate::keyed::{KeyedMap, KeyedSet};

use crate::{Block, BlockEvent, LocalHash, PerTier, SequenceHash, Tier};

/// One block that a rank holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBlock {
    /// Engine-given id of the block.
    pub sequence: SequenceHash,
    /// The block before it; none at the start of a sequence.
    pub parent: Option<SequenceHash>,
    /// Content id of the block.
    pub local: LocalHash,
    /// Reference count in each tier; at least one is not zero, unless the block is kept for its descendants only.
    pub copies: PerTier<u32>,
}

impl HeldBlock {
    /// The fastest tier with a copy.
    #[must_use]
    pub fn fastest_tier(&self) -> Option<Tier> {
        self.copies.iter().find(|&(_, &copies)| copies > 0).map(|(tier, _)| tier)
    }

    fn block(&self) -> Block {
        Block { sequence: self.sequence, local: self.local }
    }
}

/// Stored events that recreate `held` in an empty index.
///
/// Parents come before children, and consecutive blocks with equal reference counts share an event for each tier.
/// Blocks whose parent is not held come last, with the parent for which they wait. A block without copies, which is kept for its
/// descendants, is in an event of zero copies. Linear in the number of blocks.
#[must_use]
pub fn stored_events(mut held: Vec<HeldBlock>) -> Vec<BlockEvent> {
    held.sort_unstable_by_key(|block| block.sequence);
    let chain = Chain::new(&held);
    let mut events = Vec::new();
    let mut seen = vec![false; held.len()];
    let roots = (0..held.len()).filter(|&at| held[at].parent.is_none());
    let waiting = (0..held.len()).filter(|&at| held[at].parent.is_some_and(|parent| !chain.holds(parent)));
    for start in roots.chain(waiting) {
        chain.emit_from(start, &mut seen, &mut events);
    }
    // Neither start reaches blocks that follow each other in a circle, or their descendants.
    for block in 0..held.len() {
        if !seen[block] {
            chain.emit_from(chain.start_of(block), &mut seen, &mut events);
        }
    }
    events
}

fn push_run(events: &mut Vec<BlockEvent>, held: &[HeldBlock], run: &[usize]) {
    let first = &held[run[0]];
    let blocks = || run.iter().map(|&at| held[at].block()).collect();
    if first.copies.is_zero() {
        events.push(BlockEvent::Stored { tier: Tier::Device, parent: first.parent, blocks: blocks(), copies: 0 });
    }
    for (tier, &copies) in first.copies.iter() {
        if copies > 0 {
            events.push(BlockEvent::Stored { tier, parent: first.parent, blocks: blocks(), copies });
        }
    }
}

/// The parent-child relation of held blocks.
struct Chain<'a> {
    held: &'a [HeldBlock],
    position: KeyedMap<SequenceHash, usize>,
    followers: KeyedMap<SequenceHash, Vec<usize>>,
}

impl<'a> Chain<'a> {
    fn new(held: &'a [HeldBlock]) -> Self {
        let position = held.iter().enumerate().map(|(at, block)| (block.sequence, at)).collect();
        let mut followers: KeyedMap<SequenceHash, Vec<usize>> = KeyedMap::default();
        for (at, block) in held.iter().enumerate() {
            if let Some(parent) = block.parent {
                followers.entry(parent).or_default().push(at);
            }
        }
        Self { held, position, followers }
    }

    fn holds(&self, sequence: SequenceHash) -> bool {
        self.position.contains_key(&sequence)
    }

    /// Emits events for all descendants of `start`.
    fn emit_from(&self, start: usize, seen: &mut [bool], events: &mut Vec<BlockEvent>) {
        let mut pending = vec![start];
        while let Some(first) = pending.pop() {
            if !seen[first] {
                let run = self.run_from(first, seen, &mut pending);
                push_run(events, self.held, &run);
            }
        }
    }

    /// The end of a block's chain of parents: a block without a held parent, or one of a circle.
    fn start_of(&self, block: usize) -> usize {
        let mut visited = KeyedSet::default();
        let mut at = block;
        while visited.insert(at)
            && let Some(parent) = self.held[at].parent
            && let Some(&above) = self.position.get(&parent)
        {
            at = above;
        }
        at
    }

    /// The blocks from `first` on that one event can carry; other descendants go to `pending`.
    fn run_from(&self, first: usize, seen: &mut [bool], pending: &mut Vec<usize>) -> Vec<usize> {
        let mut run = vec![first];
        seen[first] = true;
        let mut last = first;
        while let Some(followers) = self.followers.get(&self.held[last].sequence) {
            let alike = |&&at: &&usize| !seen[at] && self.held[at].copies == self.held[first].copies;
            let next = followers.iter().find(alike).copied();
            pending.extend(followers.iter().filter(|&&at| Some(at) != next && !seen[at]));
            let Some(next) = next else { break };
            seen[next] = true;
            run.push(next);
            last = next;
        }
        run
    }
}
