//! The blocks of one rank by sequence hash, for the designs that look blocks up by local hash alone.

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{
    AppliedChanges, Block, BlockEvent, HeldBlock, PerTier, RankSize, RemovedCopies, SequenceHash, Tier,
};

/// The blocks of one rank by sequence hash.
#[derive(Debug, Default)]
pub(super) struct RankBlocks {
    blocks: KeyedMap<SequenceHash, HeldBlock>,
    by_tier: PerTier<usize>,
}

/// A design's lookup structure by local hash. [`RankBlocks::apply`] keeps it in step with the rank's blocks.
pub(super) trait Postings {
    /// Adds a block of the rank in a tier. Called once for each block and tier.
    fn insert(&mut self, block: Block, tier: Tier);
    /// Removes a block of the rank from a tier. Called once for each inserted block and tier.
    fn remove(&mut self, block: Block, tier: Tier);
}

impl RankBlocks {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn size(&self) -> RankSize {
        RankSize { blocks: self.blocks.len(), by_tier: self.by_tier, waiting: 0 }
    }

    pub(super) fn held(&self) -> Vec<HeldBlock> {
        self.blocks.values().copied().collect()
    }

    /// Applies one event and updates `postings`. Returns what changed.
    pub(super) fn apply(&mut self, event: &BlockEvent, postings: &mut impl Postings) -> AppliedChanges {
        let mut applied = AppliedChanges::default();
        match event {
            BlockEvent::Stored { copies: 0, .. } => {}
            BlockEvent::Stored { tier, parent, blocks, copies } => {
                let mut parent = *parent;
                for &block in blocks {
                    applied += self.store(parent, block, (*tier, *copies), postings);
                    parent = Some(block.sequence);
                }
            }
            BlockEvent::Copied { tier, blocks } => {
                for &sequence in blocks {
                    applied += match self.blocks.contains_key(&sequence) {
                        true => self.add_copies(sequence, (*tier, 1), postings),
                        false => AppliedChanges { unknown: 1, ..AppliedChanges::default() },
                    };
                }
            }
            BlockEvent::Removed { tier, blocks, copies } => {
                for &sequence in blocks {
                    applied += self.remove(sequence, *tier, *copies, postings);
                }
            }
            BlockEvent::Cleared => {
                applied.removed = self.blocks.len() as u64;
                for held in std::mem::take(self).blocks.into_values() {
                    remove_from_all_tiers(&held, postings);
                }
            }
        }
        applied
    }

    fn store(
        &mut self,
        parent: Option<SequenceHash>,
        block: Block,
        copies: (Tier, u32),
        postings: &mut impl Postings,
    ) -> AppliedChanges {
        let Block { sequence, local } = block;
        let new = HeldBlock { sequence, parent, local, copies: PerTier::default() };
        let known = self.blocks.entry(sequence).or_insert(new);
        let has_moved = (known.parent, known.local) != (parent, local);
        if has_moved {
            let moved = std::mem::replace(known, new);
            self.uncount(&moved);
            remove_from_all_tiers(&moved, postings);
        }
        AppliedChanges { moved: u64::from(has_moved), ..self.add_copies(sequence, copies, postings) }
    }

    /// Adds copies to a block in the table.
    fn add_copies(
        &mut self,
        sequence: SequenceHash,
        (tier, copies): (Tier, u32),
        postings: &mut impl Postings,
    ) -> AppliedChanges {
        let held = self.blocks.get_mut(&sequence).expect("the caller found the block");
        let before = held.copies[tier];
        held.copies[tier] = before.saturating_add(copies);
        if before > 0 {
            return AppliedChanges { duplicate: 1, ..AppliedChanges::default() };
        }
        self.by_tier[tier] += 1;
        postings.insert(Block { sequence, local: held.local }, tier);
        AppliedChanges { stored: 1, ..AppliedChanges::default() }
    }

    fn remove(
        &mut self,
        sequence: SequenceHash,
        tier: Tier,
        copies: RemovedCopies,
        postings: &mut impl Postings,
    ) -> AppliedChanges {
        let Some(held) = self.blocks.get_mut(&sequence).filter(|held| held.copies[tier] > 0) else {
            return AppliedChanges { unknown: 1, ..AppliedChanges::default() };
        };
        held.copies[tier] = copies.left(held.copies[tier]);
        if held.copies[tier] == 0 {
            postings.remove(Block { sequence, local: held.local }, tier);
            self.by_tier[tier] -= 1;
            if held.copies.is_zero() {
                self.blocks.remove(&sequence);
            }
        }
        AppliedChanges { removed: 1, ..AppliedChanges::default() }
    }

    fn uncount(&mut self, held: &HeldBlock) {
        for (tier, &copies) in held.copies.iter() {
            self.by_tier[tier] -= usize::from(copies > 0);
        }
    }
}

fn remove_from_all_tiers(held: &HeldBlock, postings: &mut impl Postings) {
    for (tier, &copies) in held.copies.iter() {
        if copies > 0 {
            postings.remove(Block { sequence: held.sequence, local: held.local }, tier);
        }
    }
}
