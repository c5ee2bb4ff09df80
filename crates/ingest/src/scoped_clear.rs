//! Clears of a part of a rank's cache. They become removals of its blocks, which histories and the shared store record.

use std::collections::hash_map::IntoValues;

use flash_indexer_core::groups::{ClearScope, GroupPart, GroupReading, GroupedIndex, RankEvent};
use flash_indexer_core::{DpRank, HeldBlock, HeldReading, ReadingProgress, SequenceHash, SharedIndex, WorkerRank};

/// Blocks that one part lists or removes. Smaller than the parts of other events, because an event of another rank may wait for
/// two parts.
pub(super) const PART_BLOCKS_MAX: usize = 256;

/// A clear of a part of a rank's cache, on the writer thread and in parts. Other events of the rank are applied before the first
/// part or after the last one.
pub(super) struct ScopedClear {
    rank: WorkerRank,
    scope: ClearScope,
    stage: Stage,
}

enum Stage {
    /// The blocks of the primary group are being listed: a removal moves the blocks that are not listed yet.
    Listing(HeldReading),
    /// The listed blocks are being removed.
    Primary(IntoValues<SequenceHash, HeldBlock>),
    /// The secondary groups are being read and cleared, the last one first.
    Secondary(Vec<GroupReading>),
}

/// One part of a scoped clear: removals of at most [`PART_BLOCKS_MAX`] blocks.
pub(super) struct ClearPart {
    pub(super) removals: Vec<RankEvent>,
    /// The rest of the clear.
    pub(super) rest: Option<ScopedClear>,
}

impl ScopedClear {
    pub(super) fn new(index: &GroupedIndex, rank: WorkerRank, scope: ClearScope) -> Self {
        let stage = match scope.has_primary() {
            true => Stage::Listing(HeldReading::with_capacity(rank, index.size(rank).blocks)),
            false => Stage::secondary(index, rank, scope),
        };
        Self { rank, scope, stage }
    }

    pub(super) fn dp_rank(&self) -> DpRank {
        self.rank.dp_rank
    }

    /// Returns the next part. The caller applies its removals before it requests another part. A part reads at most
    /// [`PART_BLOCKS_MAX`] blocks.
    pub(super) fn next_part(self, index: &GroupedIndex) -> ClearPart {
        let Self { rank, scope, stage } = self;
        let (removals, next) = match stage {
            Stage::Listing(mut reading) => match index.read_held(&mut reading, PART_BLOCKS_MAX) {
                ReadingProgress::More => (Vec::new(), Some(Stage::Listing(reading))),
                ReadingProgress::Complete => (Vec::new(), Some(Stage::Primary(reading.into_iter()))),
            },
            Stage::Primary(mut listed) => {
                // A block may be in every tier of the scope.
                let blocks: Vec<HeldBlock> = listed.by_ref().take(PART_BLOCKS_MAX / scope.tiers().count()).collect();
                let next = match blocks.is_empty() {
                    true => Stage::secondary(index, rank, scope),
                    false => Stage::Primary(listed),
                };
                (scope.primary_removals(&blocks), Some(next))
            }
            Stage::Secondary(mut readings) => match readings.last_mut() {
                Some(reading) => {
                    let blocks_max = PART_BLOCKS_MAX / scope.tiers().count();
                    let GroupPart { blocks, progress, .. } = index.read_group(rank, reading, blocks_max);
                    let removals = scope.secondary_removals(reading.group(), &blocks);
                    if progress == ReadingProgress::Complete {
                        readings.pop();
                    }
                    (removals, Some(Stage::Secondary(readings)))
                }
                None => (Vec::new(), None),
            },
        };
        ClearPart { removals, rest: next.map(|stage| Self { rank, scope, stage }) }
    }
}

impl Stage {
    fn secondary(index: &GroupedIndex, rank: WorkerRank, scope: ClearScope) -> Self {
        let groups = index.secondary_groups(rank).into_iter().filter(|group| scope.has_secondary(group.id));
        Self::Secondary(groups.map(GroupReading::new).collect())
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::groups::{
        AttentionWindow, ClearedGroups, GroupBlockSize, GroupChange, GroupEvent, GroupId, SecondaryGroup,
    };
    use flash_indexer_core::run::RunIndex;
    use flash_indexer_core::{Block, BlockEvent, LocalHash, Tier, WorkerId};

    use super::*;
    use crate::event_parts::block_count;

    const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };

    /// A rank with some blocks in two tiers and in a secondary group.
    fn index(blocks: u64) -> GroupedIndex {
        let index = GroupedIndex::new(Box::<RunIndex>::default());
        let sequences: Vec<SequenceHash> = (1..=blocks).map(SequenceHash).collect();
        let chain = sequences.iter().map(|&sequence| Block { sequence, local: LocalHash(sequence.0) });
        let stored = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks: chain.collect(), copies: 1 };
        index.apply(RANK, &stored);
        index.apply(RANK, &BlockEvent::Copied { tier: Tier::Host, blocks: sequences.clone() });
        let group =
            SecondaryGroup { id: GroupId(1), window: AttentionWindow::LastBlocks(2), size: GroupBlockSize::REGISTERED };
        let event = GroupEvent::Stored { tier: Tier::Device, blocks: sequences, copies: 1 };
        index.apply_group(RANK, &GroupChange { group, event });
        index
    }

    /// Copies of all blocks in a tier, and blocks of the secondary group.
    fn held(index: &GroupedIndex) -> (u64, u64, usize) {
        let copies = |tier| index.held(RANK).iter().map(|block| u64::from(block.copies[tier])).sum();
        let stores = index.secondary_stores(RANK).into_iter().map(RankEvent::Secondary);
        (copies(Tier::Device), copies(Tier::Host), stores.map(|event| block_count(&event)).sum())
    }

    #[test]
    fn each_part_of_a_scoped_clear_removes_a_bounded_number_of_blocks() {
        let blocks = 3 * PART_BLOCKS_MAX as u64 + 7;
        let (tier, primary) = (Some(Tier::Host), ClearedGroups::Primary);
        for (scope, expected) in [
            (ClearScope { tier: None, groups: ClearedGroups::All }, (0, 0, 0)),
            (ClearScope { tier: None, groups: primary }, (0, 0, blocks as usize)),
            (ClearScope { tier, groups: primary }, (blocks, 0, blocks as usize)),
            (ClearScope { tier, groups: ClearedGroups::All }, (blocks, 0, blocks as usize)),
            (ClearScope { tier: None, groups: ClearedGroups::Secondary(GroupId(1)) }, (blocks, blocks, 0)),
        ] {
            let index = index(blocks);
            let mut clearing = Some(ScopedClear::new(&index, RANK, scope));
            while let Some(next) = clearing.take() {
                let ClearPart { removals, rest } = next.next_part(&index);
                let removed: usize = removals.iter().map(block_count).sum();
                assert!(removed <= 256, "{scope:?}: {removed} blocks in one part");
                for removal in removals {
                    index.apply_event(RANK, &removal);
                }
                clearing = rest;
            }
            assert_eq!(held(&index), expected, "{scope:?}");
        }
    }
}
