//! What a dump says of contents that a rank's stream remembers: its engine offloads, and may name blocks again
//! without saying what they contain, also after it has dropped them.
//!
//! Of blocks that the rank holds it is marked that they are remembered. The others are told in events of their own,
//! which store nothing for whoever does not know them.

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{Block, BlockEvent, HeldBlock, PerTier, SequenceHash, Tier, stored_events};
use flash_indexer_wire::{Age, RecentBlock};
use serde::{Deserialize, Serialize};

use super::tally::Tally;

/// An [`Age`] in a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AgeRecord {
    Young,
    Old,
}

impl From<Age> for AgeRecord {
    fn from(age: Age) -> Self {
        match age {
            Age::Young => Self::Young,
            Age::Old => Self::Old,
        }
    }
}

impl From<AgeRecord> for Age {
    fn from(age: AgeRecord) -> Self {
        match age {
            AgeRecord::Young => Self::Young,
            AgeRecord::Old => Self::Old,
        }
    }
}

/// Contents of blocks of which each follows the one before it.
pub fn remembered(mut parent: Option<SequenceHash>, blocks: &[Block], age: Age) -> impl Iterator<Item = RecentBlock> {
    blocks.iter().map(move |&Block { sequence, local }| RecentBlock {
        sequence,
        parent: parent.replace(sequence),
        local,
        age,
    })
}

/// Counts all contents that are remembered of a rank.
pub(super) fn tally(contents: &[RecentBlock]) -> Tally {
    let mut tally = Tally::default();
    for &RecentBlock { sequence, parent, local, age } in contents {
        tally.add_contents(age, parent, &[Block { sequence, local }]);
    }
    tally
}

/// Contents that are still to be written.
pub(super) struct Unwritten(KeyedMap<SequenceHash, RecentBlock>);

impl Unwritten {
    pub(super) fn new(contents: Option<&[RecentBlock]>) -> Self {
        Self(contents.into_iter().flatten().map(|content| (content.sequence, *content)).collect())
    }

    /// How a block that is written is to be marked: once, if just this is remembered of it.
    pub(super) fn mark(&mut self, parent: Option<SequenceHash>, block: &Block) -> Option<Age> {
        let content = self.0.get(&block.sequence)?;
        let age = (content.parent == parent && content.local == block.local).then_some(content.age)?;
        self.0.remove(&block.sequence);
        Some(age)
    }

    /// What is left, as stores of blocks that follow each other.
    pub(super) fn gone(self) -> impl Iterator<Item = (Age, BlockEvent)> {
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
