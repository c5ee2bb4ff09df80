//! Decoder state of a rank in a dump: the local hashes of recent blocks.
//!
//! An engine that offloads may name a block again by its sequence hash only, even after it has dropped the block. The
//! decoder therefore retains local hashes of recent blocks. A dump marks held blocks whose hashes are retained. Retained
//! hashes of blocks that are not held have separate events, which store nothing for readers that do not support them.

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{Block, BlockEvent, HeldBlock, PerTier, SequenceHash, Tier, stored_events};
use flash_indexer_wire::{Age, RecentBlock};

use super::tally::Tally;

/// Decoder state of a chain of blocks: each block is the parent of the next.
pub fn recent_blocks(
    mut parent: Option<SequenceHash>,
    blocks: &[Block],
    age: Age,
) -> impl Iterator<Item = RecentBlock> {
    blocks.iter().map(move |&Block { sequence, local }| RecentBlock {
        sequence,
        parent: parent.replace(sequence),
        local,
        age,
    })
}

/// Counts and digests the decoder state of a rank.
pub(super) fn tally(contents: &[RecentBlock]) -> Tally {
    let mut tally = Tally::default();
    for &RecentBlock { sequence, parent, local, age } in contents {
        tally.add_contents(age, parent, &[Block { sequence, local }]);
    }
    tally
}

/// Decoder state that is not written yet.
pub(super) struct UnwrittenState(KeyedMap<SequenceHash, RecentBlock>);

impl UnwrittenState {
    pub(super) fn new(contents: Option<&[RecentBlock]>) -> Self {
        Self(contents.into_iter().flatten().map(|content| (content.sequence, *content)).collect())
    }

    /// Mark of a block that is being written: its age, once, if the decoder state has it with this parent and local hash.
    pub(super) fn mark(&mut self, parent: Option<SequenceHash>, block: &Block) -> Option<Age> {
        let content = self.0.get(&block.sequence)?;
        let age = (content.parent == parent && content.local == block.local).then_some(content.age)?;
        self.0.remove(&block.sequence);
        Some(age)
    }

    /// The remaining state, as stores of chains of blocks that the rank does not hold.
    pub(super) fn not_held(self) -> impl Iterator<Item = (Age, BlockEvent)> {
        let mut copies = PerTier::default();
        copies[Tier::Device] = 1;
        [Age::Old, Age::Young].into_iter().flat_map(move |age| {
            let of_age = self.0.values().filter(|content| content.age == age);
            let held = of_age.map(|content| HeldBlock {
                sequence: content.sequence,
                parent: content.parent,
                local: content.local,
                copies,
            });
            stored_events(held.collect()).into_iter().map(move |event| (age, event))
        })
    }
}
