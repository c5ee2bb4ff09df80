//! What a translator remembers, for another one of the same rank.

use flash_indexer_core::hashing::Salt;
use flash_indexer_core::{LocalHash, SequenceHash};

use super::groups::KnownGroup;
use super::recent::{Age, Recent};
use super::{KNOWN_BLOCKS_MAX, Translator};

/// Contents that a translator remembers at most.
pub const CONTENTS_MAX: usize = 2 * KNOWN_BLOCKS_MAX;

/// The content of a block that an engine may name again without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecentBlock {
    /// The engine's name of the block.
    pub sequence: SequenceHash,
    /// The block before it; none at the start of a sequence.
    pub parent: Option<SequenceHash>,
    /// What it contains.
    pub local: LocalHash,
    /// How soon it is forgotten.
    pub age: Age,
}

impl Translator {
    /// Blocks whose salt is inherited by those that follow them, the oldest first.
    pub fn salts(&self) -> impl Iterator<Item = (SequenceHash, Salt)> {
        self.salts.iter().map(|(block, salt, _)| (block, salt))
    }

    /// Takes over which salts another translator of the same rank had learned.
    pub fn learn_salts(&mut self, salts: impl IntoIterator<Item = (SequenceHash, Salt)>) {
        salts.into_iter().for_each(|(block, salt)| self.salts.insert(block, salt));
    }

    /// What the rank's blocks contain, held or not, in any order and at most [`CONTENTS_MAX`]; none of a rank that
    /// has not offloaded.
    pub fn contents(&self) -> Option<impl Iterator<Item = RecentBlock>> {
        let contents = self.told.as_ref()?.iter();
        Some(contents.map(|(sequence, (parent, local), age)| RecentBlock { sequence, parent, local, age }))
    }

    /// Takes over which contents another translator of the same rank had learned, which offloads.
    pub fn learn_contents(&mut self, contents: impl IntoIterator<Item = RecentBlock>) {
        let told = self.told.get_or_insert_with(|| Recent::new(KNOWN_BLOCKS_MAX));
        for RecentBlock { sequence, parent, local, age } in contents {
            told.learn(sequence, (parent, local), age);
        }
    }

    /// The cache groups that the rank has named, in any order. Engines say what a group is with stores
    /// only: whoever goes on in the middle of a stream must know it for removals.
    pub fn groups(&self) -> impl Iterator<Item = KnownGroup> {
        self.groups.iter()
    }

    /// Takes over which cache groups another translator of the same rank had learned.
    pub fn learn_groups(&mut self, groups: impl IntoIterator<Item = KnownGroup>) {
        groups.into_iter().for_each(|group| self.groups.learn(group));
    }
}
