//! Translation of removals, transfers and clears of a part of the cache.

use flash_indexer_core::groups::{ClearScope, ClearedGroups, GroupChange, GroupEvent, RankEvent, SecondaryGroup};
use flash_indexer_core::{BlockEvent, RemovedCopies, SequenceHash, Tier};

use super::recent::RecentMap;
use super::{MEDIUM_CHARS_MAX, RECENT_GENERATION_MAX, TranslateError, Translation, Translator, tier};
use crate::event::{BlockRemoved, BlockTransferred, ScopedClear};

impl Translator {
    pub(super) fn removed(&mut self, event: &BlockRemoved<'_>) -> Result<Translation, TranslateError> {
        let tier = tier(event.medium, event.locality)?;
        let group = self.groups.of_removal(event.group_idx)?;
        let Some(counts) = &event.remaining_copy_counts else {
            let copies = self.options.removed_copies;
            self.owned.removed(event.ownership, (tier, copies), group, &event.block_hashes);
            let removal = self.removal(group, (tier, copies), &event.block_hashes);
            let of_components = (group.is_none() && event.group_idx.is_none()).then(|| self.components.groups());
            let of_components = of_components.into_iter().flatten().map(|group| {
                // A removal is of the whole block.
                let blocks = event.block_hashes.clone();
                RankEvent::Secondary(GroupChange {
                    group,
                    event: GroupEvent::Removed { tier, blocks, copies: RemovedCopies::All },
                })
            });
            return Ok(std::iter::once(removal).chain(of_components).collect());
        };
        let mut removals = Vec::new();
        let (mut blocks, mut counts) = (&event.block_hashes[..], &counts[..]);
        while let Some(&left) = counts.first() {
            let same = counts.iter().take_while(|&&count| count == left).count();
            let copies = if left == 0 { RemovedCopies::All } else { RemovedCopies::AllBut(left) };
            self.owned.removed(event.ownership, (tier, copies), group, &blocks[..same]);
            removals.push(self.removal(group, (tier, copies), &blocks[..same]));
            (blocks, counts) = (&blocks[same..], &counts[same..]);
        }
        Ok(removals.into_iter().collect())
    }

    /// A removal of blocks from the primary group or a secondary one.
    fn removal(
        &mut self,
        group: Option<SecondaryGroup>,
        (tier, copies): (Tier, RemovedCopies),
        blocks: &[SequenceHash],
    ) -> RankEvent {
        let blocks = blocks.to_vec();
        match group {
            None => {
                self.salts.removed(tier, &blocks, copies);
                RankEvent::Primary(BlockEvent::Removed { tier, blocks, copies })
            }
            Some(group) => {
                RankEvent::Secondary(GroupChange { group, event: GroupEvent::Removed { tier, blocks, copies } })
            }
        }
    }

    /// Translates a move between media: a copy in the new tier, then a removal from the old one, so that the content of the
    /// block stays known.
    pub(super) fn transferred(&mut self, event: &BlockTransferred<'_>) -> Result<Translation, TranslateError> {
        let from = tier(event.from_medium, None)?;
        let to = tier(event.to_medium, None).map_err(|error| match error {
            TranslateError::UnknownMedium { medium } => TranslateError::UnknownTarget { medium },
            error => error,
        })?;
        let group = self.groups.of_removal(event.group_idx)?;
        if from == to {
            return Ok(Translation::default());
        }
        if to != Tier::Device {
            self.recent_blocks.get_or_insert_with(|| RecentMap::new(RECENT_GENERATION_MAX));
        }
        let blocks = &event.block_hashes;
        let mut changes: Vec<RankEvent> = match group {
            None => self.offloaded((to, None), blocks)?.into_iter().collect(),
            Some(group) => {
                let event = GroupEvent::Stored { tier: to, blocks: blocks.clone(), copies: 1 };
                vec![RankEvent::Secondary(GroupChange { group, event })]
            }
        };
        let copies = self.options.removed_copies;
        self.owned.removed(None, (from, copies), group, blocks);
        changes.push(self.removal(group, (from, copies), blocks));
        Ok(changes.into_iter().collect())
    }

    /// Translates a clear of a part of the cache. An index has each block with its tier and group, but not with its
    /// manager.
    pub(super) fn cleared_scope(&mut self, event: &ScopedClear<'_>) -> Result<Translation, TranslateError> {
        let tier = event.medium.map(|medium| tier(Some(medium), None)).transpose()?;
        let groups = match event.group_idx {
            None => ClearedGroups::All,
            idx => {
                self.groups.of_removal(idx)?.map_or(ClearedGroups::Primary, |group| ClearedGroups::Secondary(group.id))
            }
        };
        let scope = ClearScope { tier, groups };
        if let Some(owner) = event.ownership {
            let unknown = || {
                let owner = owner.chars().take(MEDIUM_CHARS_MAX).collect();
                TranslateError::OwnershipUnknown { owner }
            };
            let removals = self.owned.clear_owner(owner, scope).ok_or_else(unknown)?;
            for removal in &removals {
                if let RankEvent::Primary(BlockEvent::Removed { tier, blocks, copies }) = removal {
                    self.salts.removed(*tier, blocks, *copies);
                }
            }
            return Ok(removals.into_iter().collect());
        }
        self.owned.clear(scope);
        if scope.has_primary() {
            scope.tiers().for_each(|tier| self.salts.cleared(tier));
        }
        Ok(Translation { first: RankEvent::ClearedScope(scope), rest: Vec::new() })
    }
}
