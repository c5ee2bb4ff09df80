//! Translation of removals, transfers and clears of a part of the cache.

use flash_indexer_core::groups::{ClearScope, ClearedGroups, GroupChange, GroupEvent, RankEvent, SecondaryGroup};
use flash_indexer_core::{BlockEvent, RemovedCopies, SequenceHash, Tier};

use super::managed::{ClearedManager, removal};
use super::recent::RecentMap;
use super::{MEDIUM_CHARS_MAX, RECENT_GENERATION_MAX, TranslateError, Translation, Translator};
use crate::event::{BlockRemoved, BlockTransferred, ScopedClear, StoreOrigin};

impl Translator {
    pub(super) fn removed(&mut self, event: &BlockRemoved<'_>) -> Result<Translation, TranslateError> {
        let event = &*self.of_divided_chunks(event)?;
        let tier = self.tier(event.medium, event.locality)?;
        let group = self.groups.of_removal(event.group_idx)?;
        let of_components = self.components_of(group, event.group_idx);
        let Some(counts) = &event.remaining_copy_counts else {
            let copies = self.options.removed_copies;
            let mut changes = vec![self.removal(event.ownership, group, (tier, copies), &event.block_hashes)];
            changes.extend(self.removals_of(&of_components, tier, &event.block_hashes));
            return Ok(changes.into_iter().collect());
        };
        let (mut changes, mut doubt) = (Vec::new(), None);
        let (mut blocks, mut counts) = (&event.block_hashes[..], &counts[..]);
        while let Some(&left) = counts.first() {
            let same = counts.iter().take_while(|&&count| count == left).count();
            let counted = &blocks[..same];
            (blocks, counts) = (&blocks[same..], &counts[same..]);
            if left == 0 {
                changes.push(self.removal(event.ownership, group, (tier, RemovedCopies::All), counted));
                changes.extend(self.removals_of(&of_components, tier, counted));
                continue;
            }
            // The engine has these copies, even if it has not published any copy of a block in this tier.
            changes.extend(self.copies(group, (tier, Some(StoreOrigin::Reused)), counted)?);
            changes.push(self.removal(event.ownership, group, (tier, RemovedCopies::AllBut(left)), counted));
            doubt = (!of_components.is_empty()).then_some(TranslateError::ComponentsUnknown);
        }
        Ok(Translation { doubt, ..changes.into_iter().collect() })
    }

    /// The components of blocks that an event without components and of this group changes.
    fn components_of(&self, group: Option<SecondaryGroup>, group_idx: Option<u32>) -> Vec<SecondaryGroup> {
        let is_of_whole_blocks = group.is_none() && group_idx.is_none();
        self.components.groups().filter(|_| is_of_whole_blocks).collect()
    }

    /// Removals of the components of whole blocks.
    fn removals_of(&mut self, components: &[SecondaryGroup], tier: Tier, blocks: &[SequenceHash]) -> Vec<RankEvent> {
        let removals = components.iter();
        removals.map(|&group| self.removal(None, Some(group), (tier, RemovedCopies::All), blocks)).collect()
    }

    /// A removal of blocks from the primary group or a secondary one.
    pub(super) fn removal(
        &mut self,
        owner: Option<&str>,
        group: Option<SecondaryGroup>,
        (tier, copies): (Tier, RemovedCopies),
        blocks: &[SequenceHash],
    ) -> RankEvent {
        self.managed.removed(owner, (tier, copies), group, blocks);
        self.uncounted_removal(group, (tier, copies), blocks)
    }

    /// A removal whose effect on the managers of the blocks is known already.
    fn uncounted_removal(
        &mut self,
        group: Option<SecondaryGroup>,
        (tier, copies): (Tier, RemovedCopies),
        blocks: &[SequenceHash],
    ) -> RankEvent {
        if group.is_none() {
            self.salts.removed(tier, blocks, copies);
        }
        removal((tier, copies), group, blocks.to_vec())
    }

    /// Copies of blocks that an event names by sequence hash alone.
    fn copies(
        &mut self,
        group: Option<SecondaryGroup>,
        (tier, origin): (Tier, Option<StoreOrigin>),
        blocks: &[SequenceHash],
    ) -> Result<Translation, TranslateError> {
        match group {
            None => self.offloaded((tier, origin), blocks),
            Some(group) => {
                let event = GroupEvent::Stored { tier, blocks: blocks.to_vec(), copies: 1 };
                Ok(Translation::one(RankEvent::Secondary(GroupChange { group, event })))
            }
        }
    }

    /// Translates a move between media: a copy in the new tier, then a removal from the old one, so that the content of the
    /// block stays known. Copies in an unknown medium are not indexed, so a move from one only adds a copy.
    pub(super) fn transferred(&mut self, event: &BlockTransferred<'_>) -> Result<Translation, TranslateError> {
        let from = self.tier(event.from_medium, None);
        let to = match (self.tier(event.to_medium, None), &from) {
            (Err(TranslateError::UnknownMedium { medium }), Ok(_)) => {
                return Err(TranslateError::UnknownTarget { medium });
            }
            (to, _) => to?,
        };
        let group = self.groups.of_removal(event.group_idx)?;
        if from == Ok(to) {
            return Ok(Translation::default());
        }
        if to != Tier::Device {
            self.recent_blocks.get_or_insert_with(|| RecentMap::new(RECENT_GENERATION_MAX));
        }
        let blocks = &event.block_hashes;
        let mut changes: Vec<RankEvent> = self.copies(group, (to, None), blocks)?.into_iter().collect();
        match from {
            Ok(from) => {
                let copies = self.options.removed_copies;
                self.managed.transferred((from, to), copies, group, blocks);
                changes.push(self.uncounted_removal(group, (from, copies), blocks));
            }
            // Any manager may have them.
            Err(_) => self.managed.forget(),
        }
        let has_components = !self.components_of(group, event.group_idx).is_empty();
        let doubt = has_components.then_some(TranslateError::ComponentsUnknown);
        Ok(Translation { doubt, ..changes.into_iter().collect() })
    }

    /// Translates a clear of a part of the cache. An index has each block with its tier and group, but not with its
    /// manager.
    pub(super) fn cleared_scope(&mut self, event: &ScopedClear<'_>) -> Result<Translation, TranslateError> {
        let tier = event.medium.map(|medium| self.tier(Some(medium), None)).transpose()?;
        let groups = match event.group_idx {
            None => ClearedGroups::All,
            Some(idx) => self.groups.of_clear(idx)?,
        };
        let scope = ClearScope { tier, groups };
        if let Some(manager) = event.ownership {
            let cleared = self.managed.clear_manager(manager, scope);
            let manager = manager.chars().take(MEDIUM_CHARS_MAX).collect();
            let Some(ClearedManager { removals, is_doubtful }) = cleared else {
                return Err(TranslateError::ManagerUnknown { manager });
            };
            for removal in &removals {
                if let RankEvent::Primary(BlockEvent::Removed { tier, blocks, copies }) = removal {
                    self.salts.removed(*tier, blocks, *copies);
                }
            }
            let doubt = is_doubtful.then_some(TranslateError::ManagerUncertain { manager });
            return Ok(Translation { doubt, ..removals.into_iter().collect() });
        }
        self.managed.clear(scope);
        if scope.has_primary() {
            scope.tiers().for_each(|tier| self.salts.cleared(tier));
        }
        Ok(Translation::one(RankEvent::ClearedScope(scope)))
    }
}
