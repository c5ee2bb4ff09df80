//! Waiting blocks of one rank, indexed by the sequence hash of the parent that they wait for.

use crate::keyed::{KeyedMap, KeyedSet};

use super::reclaim::WaitingByParent;

use crate::{HeldBlock, SequenceHash};

/// The waiting blocks of a rank.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    blocks: KeyedMap<SequenceHash, HeldBlock>,
    by_parent: KeyedMap<SequenceHash, KeyedSet<SequenceHash>>,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Takes the parts that are freed in pieces; the rest is one piece.
    pub(super) fn into_sets(self) -> WaitingByParent {
        self.by_parent.into_iter()
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn contains(&self, sequence: SequenceHash) -> bool {
        self.blocks.contains_key(&sequence)
    }

    pub(super) fn get(&self, sequence: SequenceHash) -> Option<&HeldBlock> {
        self.blocks.get(&sequence)
    }

    pub(super) fn get_mut(&mut self, sequence: SequenceHash) -> Option<&mut HeldBlock> {
        self.blocks.get_mut(&sequence)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &HeldBlock> {
        self.blocks.values()
    }

    /// Adds a block that does not wait yet.
    pub(super) fn insert(&mut self, block: HeldBlock) {
        let parent = block.parent.expect("only a block with a parent can wait for it");
        self.by_parent.entry(parent).or_default().insert(block.sequence);
        self.blocks.insert(block.sequence, block);
    }

    pub(super) fn remove(&mut self, sequence: SequenceHash) -> Option<HeldBlock> {
        let block = self.blocks.remove(&sequence)?;
        let parent = block.parent.expect("a waiting block has a parent");
        let siblings = self.by_parent.get_mut(&parent).expect("a waiting block is listed under its parent");
        siblings.remove(&sequence);
        if siblings.is_empty() {
            self.by_parent.remove(&parent);
        }
        Some(block)
    }

    /// Removes the blocks that wait for this sequence hash.
    pub(super) fn take_followers(&mut self, parent: SequenceHash) -> Vec<HeldBlock> {
        let sequences = self.by_parent.remove(&parent).unwrap_or_default();
        sequences.into_iter().filter_map(|sequence| self.blocks.remove(&sequence)).collect()
    }
}
