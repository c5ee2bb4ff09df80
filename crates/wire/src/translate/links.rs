//! Stores of secondary cache groups, with the links of their blocks in a group whose blocks are smaller than the registered ones.
//!
//! An engine does not store every block of such a group. A prefix can end only at the end of a registered block, so the
//! engine stores only the last blocks before each such end, as many as the window needs:
//!
//! ```text
//!  registered blocks      │           1           │           2           │
//!  blocks of the group    │ ·  ·  ·  ·  ·  ·  ■  ■│ ·  ·  ·  ·  ·  ·  ■  ■│    a window of two blocks
//!  block_hashes of a store                    7  8                    15 16
//! ```
//!
//! The tokens of a store cover all of these blocks. The hashes are only those of the stored blocks, without positions. But
//! blocks that one window needs are next to each other in the list, or the first of them follows the parent that the store
//! names: those links are right. Other links, such as from 15 to 8, are wrong, and no window reaches them.
//!
//! If the engine has loaded the blocks from another cache, a block of the window can be missing: one of the first blocks of
//! a store. Or the engine keeps the windows of some registered blocks only. The store then has fewer hashes than any
//! position of its tokens explains, and the link of its first hash is unknown. All its links are unknown if a window is
//! larger than a registered block, because the window's blocks are not next to each other then.

use flash_indexer_core::Tier;
use flash_indexer_core::groups::{
    AttentionWindow, BlockLink, ClearScope, ClearedGroups, GroupChange, GroupEvent, RankEvent, SecondaryGroup,
};
use flash_indexer_core::hashing::BlockSize;

use super::{TranslateError, Translation, Translator};
use crate::event::BlockStored;

/// Limit of the blocks of a store that a secondary group with links receives at once.
const LINKED_BLOCKS_MAX: usize = 1 << 12;

impl Translator {
    /// Translates a store of a secondary group. Only its sequence hashes count: the group omits blocks outside its window,
    /// and its tokens do not show which blocks are omitted.
    pub(super) fn stored_in_secondary(
        &self,
        group: SecondaryGroup,
        tier: Tier,
        event: &BlockStored<'_>,
    ) -> Translation {
        let change = |event| RankEvent::Secondary(GroupChange { group, event });
        // A store without blocks announces the group.
        if !group.needs_links() || event.block_hashes.is_empty() {
            let event = GroupEvent::Stored { tier, blocks: event.block_hashes.clone(), copies: 1 };
            return Translation::one(change(event));
        }
        // Each part of the links precedes its blocks: an index does not keep many links of blocks that are not held.
        let links = links_of(group, event, self.options.block_size);
        let parts = event.block_hashes.chunks(LINKED_BLOCKS_MAX).enumerate().flat_map(|(part, blocks)| {
            let of_part = links.iter().filter(|(at, _)| at / LINKED_BLOCKS_MAX == part).map(|(_, link)| *link);
            let linked: Vec<_> = of_part.collect();
            let linked = (!linked.is_empty()).then_some(GroupEvent::Linked(linked));
            linked.into_iter().chain([GroupEvent::Stored { tier, blocks: blocks.to_vec(), copies: 1 }])
        });
        parts.map(change).collect()
    }

    /// Translates a store of a group whose earlier stores were of partial entries, and removes those entries.
    pub(super) fn stored_in_grown(
        &mut self,
        group: SecondaryGroup,
        tier: Tier,
        event: &BlockStored<'_>,
    ) -> Translation {
        let scope = ClearScope { tier: None, groups: ClearedGroups::Secondary(group.id) };
        self.managed.clear(scope);
        let stored = self.stored_in_secondary(group, tier, event);
        let changes = std::iter::once(RankEvent::ClearedScope(scope)).chain(stored);
        let whole = group.size.tokens(self.options.block_size);
        let doubt = TranslateError::PartialEntry { group: group.id.0, actual: event.block_size, whole };
        Translation { doubt: Some(doubt), ..changes.collect() }
    }
}

/// The links that a store of a group shows, each with the position of its block among the hashes.
fn links_of(group: SecondaryGroup, event: &BlockStored<'_>, registered: BlockSize) -> Vec<(usize, BlockLink)> {
    let size = group.size.block_size(registered).token_count();
    let (covered, hashes) = (event.token_ids.len() / size, &event.block_hashes);
    let is_readable = event.token_ids.len().is_multiple_of(size) && hashes.len() <= covered;
    if !is_readable {
        return Vec::new();
    }
    let parts = group.size.parts() as usize;
    let needed = match group.window {
        AttentionWindow::Full => usize::MAX,
        AttentionWindow::LastBlocks(blocks) => blocks as usize,
    };
    let is_first_known = hashes.len() >= least_stored(covered, parts, needed.min(parts));
    if !is_first_known && needed > parts {
        return Vec::new();
    }
    let before = std::iter::once(event.parent_block_hash).chain(hashes.iter().copied().map(Some));
    let links = hashes.iter().zip(before).map(|(&block, before)| BlockLink { block, before }).enumerate();
    links.filter(|&(at, _)| at > 0 || is_first_known).collect()
}

/// Smallest number of blocks that an engine stores of `covered` consecutive blocks, if it needs the last `needed` of `parts`.
fn least_stored(covered: usize, parts: usize, needed: usize) -> usize {
    covered / parts * needed + (covered % parts).saturating_sub(parts - needed)
}
