//! Export and import of a translator's decoder state.

use flash_indexer_core::groups::{GroupBlockSize, SecondaryGroup};
use flash_indexer_core::{LocalHash, SequenceHash};

use super::groups::{GroupRole, KnownGroup};
use super::recent::{Age, RecentMap};
use super::salts::SaltedBlock;
use super::{RECENT_GENERATION_MAX, Translator};

/// Limit of the blocks in [`Translator::recent_blocks`].
pub const RECENT_BLOCKS_MAX: usize = 2 * RECENT_GENERATION_MAX;

/// Local hash and parent of a block that the engine may store again by sequence hash alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecentBlock {
    /// The block's sequence hash.
    pub sequence: SequenceHash,
    /// The block before it; none at the start of a sequence.
    pub parent: Option<SequenceHash>,
    /// The block's local hash.
    pub local: LocalHash,
    /// Generation of the entry: the older one is evicted first.
    pub age: Age,
}

impl Translator {
    /// Salts that later blocks of a sequence inherit, with the blocks that carry them.
    pub fn salts(&self) -> impl Iterator<Item = SaltedBlock> {
        self.salts.iter()
    }

    /// Imports salts of another translator of the same rank. A block with copies in several tiers may be imported tier by
    /// tier. Returns the number of blocks that exceed the limit.
    pub fn import_salts(&mut self, blocks: impl IntoIterator<Item = SaltedBlock>) -> usize {
        // The state of another translator does not include the managers of blocks.
        self.managed.forget();
        blocks.into_iter().filter(|&block| !self.salts.import(block)).count()
    }

    /// Blocks of the rank that were stored recently, held or not, in any order and at most [`RECENT_BLOCKS_MAX`]; none
    /// for a rank that has not offloaded.
    pub fn recent_blocks(&self) -> Option<impl Iterator<Item = RecentBlock>> {
        let blocks = self.recent_blocks.as_ref()?.iter();
        Some(blocks.map(|(sequence, (parent, local), age)| RecentBlock { sequence, parent, local, age }))
    }

    /// Imports the recent blocks of another translator of the same rank, which has offloaded.
    pub fn import_recent_blocks(&mut self, blocks: impl IntoIterator<Item = RecentBlock>) {
        let recent_blocks = self.recent_blocks.get_or_insert_with(|| RecentMap::new(RECENT_GENERATION_MAX));
        for RecentBlock { sequence, parent, local, age } in blocks {
            recent_blocks.import(sequence, (parent, local), age);
        }
    }

    /// The cache groups that the rank has named, in any order. Engines describe a group in stores only, so a
    /// translator that resumes in the middle of a stream needs them for removals.
    pub fn groups(&self) -> impl Iterator<Item = KnownGroup> {
        let components = self.components.groups();
        let components = components.map(|SecondaryGroup { id, window, size }| KnownGroup {
            id,
            role: GroupRole::Secondary { window, size: Some(size) },
        });
        self.groups.iter().chain(components)
    }

    /// Imports the cache groups of another translator of the same rank.
    pub fn import_groups(&mut self, groups: impl IntoIterator<Item = KnownGroup>) {
        for group in groups {
            let is_component = match group.role {
                GroupRole::Secondary { window, size } => {
                    let size = size.unwrap_or(GroupBlockSize::REGISTERED);
                    self.components.import(SecondaryGroup { id: group.id, window, size })
                }
                GroupRole::Primary | GroupRole::Unsupported => false,
            };
            if !is_component {
                self.groups.import(group);
            }
        }
    }
}
