//! Waiting blocks of one rank, indexed by the sequence hash of the parent that they wait for.

use crate::keyed::KeyedMap;
use crate::{HeldBlock, SequenceHash};

/// The waiting blocks of a rank. The blocks that wait for one parent form a list, so that any of them is added and
/// removed in constant time.
#[derive(Debug, Default)]
pub(super) struct WaitingBlocks {
    blocks: KeyedMap<SequenceHash, WaitingBlock>,
    /// The first block that waits for a parent.
    by_parent: KeyedMap<SequenceHash, SequenceHash>,
}

#[derive(Debug)]
struct WaitingBlock {
    block: HeldBlock,
    /// The blocks before and after it that wait for the same parent.
    previous: Option<SequenceHash>,
    next: Option<SequenceHash>,
}

impl WaitingBlocks {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of the tables. Constant time.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<(SequenceHash, WaitingBlock)>()
            + self.by_parent.capacity() * size_of::<(SequenceHash, SequenceHash)>()
    }

    pub(super) fn contains(&self, sequence: SequenceHash) -> bool {
        self.blocks.contains_key(&sequence)
    }

    pub(super) fn get(&self, sequence: SequenceHash) -> Option<&HeldBlock> {
        self.blocks.get(&sequence).map(|waiting| &waiting.block)
    }

    pub(super) fn get_mut(&mut self, sequence: SequenceHash) -> Option<&mut HeldBlock> {
        self.blocks.get_mut(&sequence).map(|waiting| &mut waiting.block)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &HeldBlock> {
        self.blocks.values().map(|waiting| &waiting.block)
    }

    /// Adds a block that does not wait yet.
    pub(super) fn insert(&mut self, block: HeldBlock) {
        let parent = block.parent.expect("only a block with a parent can wait for it");
        let next = self.by_parent.insert(parent, block.sequence);
        if let Some(next) = next.and_then(|next| self.blocks.get_mut(&next)) {
            next.previous = Some(block.sequence);
        }
        self.blocks.insert(block.sequence, WaitingBlock { block, previous: None, next });
    }

    pub(super) fn remove(&mut self, sequence: SequenceHash) -> Option<HeldBlock> {
        let WaitingBlock { block, previous, next } = self.blocks.remove(&sequence)?;
        let parent = block.parent.expect("a waiting block has a parent");
        if let Some(next) = next.and_then(|next| self.blocks.get_mut(&next)) {
            next.previous = previous;
        }
        match (previous.and_then(|previous| self.blocks.get_mut(&previous)), next) {
            (Some(previous), next) => previous.next = next,
            (None, Some(next)) => {
                self.by_parent.insert(parent, next);
            }
            (None, None) => {
                self.by_parent.remove(&parent);
            }
        }
        Some(block)
    }

    /// The blocks that wait for this sequence hash.
    pub(super) fn followers(&self, parent: SequenceHash) -> impl Iterator<Item = &HeldBlock> {
        let first = self.by_parent.get(&parent).and_then(|first| self.blocks.get(first));
        let next = |waiting: &&WaitingBlock| waiting.next.and_then(|next| self.blocks.get(&next));
        std::iter::successors(first, next).map(|waiting| &waiting.block)
    }

    /// A block that waits for this sequence hash.
    pub(super) fn follower(&self, parent: SequenceHash) -> Option<SequenceHash> {
        self.by_parent.get(&parent).copied()
    }
}
