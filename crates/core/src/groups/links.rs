//! Links between the blocks of a cache group whose blocks are smaller than those of the index.

use super::BlockLink;
use crate::SequenceHash;
use crate::keyed::KeyedMap;

/// Limit of the links of blocks that a group does not hold, in each of two generations.
pub const RELEASED_LINKS_MAX: usize = 1 << 16;

/// The block before each block of a group; none at the start of a sequence.
///
/// A sequence hash identifies a whole prefix, so a link never becomes wrong. The link of a block that is not held is kept for a
/// while: an engine may store a copy in a slower tier by sequence hash alone, after the copy that showed the link was removed.
#[derive(Debug, Default)]
pub(super) struct Links {
    held: KeyedMap<SequenceHash, Option<SequenceHash>>,
    released: KeyedMap<SequenceHash, Option<SequenceHash>>,
    released_before: KeyedMap<SequenceHash, Option<SequenceHash>>,
}

impl Links {
    /// The block before a block; none if it is not known, or if there is none.
    pub(super) fn before(&self, block: SequenceHash) -> Option<SequenceHash> {
        let generations = [&self.held, &self.released, &self.released_before];
        generations.into_iter().find_map(|links| links.get(&block)).copied().flatten()
    }

    /// The link of a held block, if it is known.
    pub(super) fn of_held(&self, block: SequenceHash) -> Option<BlockLink> {
        self.held.get(&block).map(|&before| BlockLink { block, before })
    }

    /// Bytes of the links.
    pub(super) fn bytes(&self) -> usize {
        let links = [&self.held, &self.released, &self.released_before].map(KeyedMap::capacity).iter().sum::<usize>();
        links * size_of::<(SequenceHash, Option<SequenceHash>)>()
    }

    /// Number of held blocks with a link.
    pub(super) fn held_count(&self) -> usize {
        self.held.len()
    }

    /// Adds or replaces the link of a block.
    pub(super) fn set(&mut self, BlockLink { block, before }: BlockLink, is_held: bool) {
        match is_held {
            true => drop(self.held.insert(block, before)),
            false => self.release(block, before),
        }
    }

    /// Records that a block is held now. Returns whether its link is known.
    pub(super) fn hold(&mut self, block: SequenceHash) -> bool {
        if self.held.contains_key(&block) {
            return true;
        }
        let link = self.released.remove(&block).or_else(|| self.released_before.remove(&block));
        link.map(|before| self.held.insert(block, before)).is_some()
    }

    /// Records that a block is not held any more.
    pub(super) fn leave(&mut self, block: SequenceHash) {
        if let Some(before) = self.held.remove(&block) {
            self.release(block, before);
        }
    }

    fn release(&mut self, block: SequenceHash, before: Option<SequenceHash>) {
        if self.released.len() >= RELEASED_LINKS_MAX {
            self.released_before = std::mem::take(&mut self.released);
        }
        self.released_before.remove(&block);
        self.released.insert(block, before);
    }

    /// The links of the held blocks.
    pub(super) fn iter(&self) -> impl Iterator<Item = BlockLink> {
        self.held.iter().map(|(&block, &before)| BlockLink { block, before })
    }
}
