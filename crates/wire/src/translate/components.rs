//! Components of SGLang's hybrid models as cache groups.

use flash_indexer_core::groups::{AttentionWindow, GroupBlockSize, GroupId, SecondaryGroup};
use flash_indexer_core::hashing::BlockSize;

use crate::event::{CacheGroup, Components};

/// Number of the group of the sliding-window component, which no engine uses for a cache group. Full attention is the
/// primary group.
const SWA: GroupId = GroupId(u32::MAX - 1);
/// Number of the group of recurrent states.
const MAMBA: GroupId = GroupId(u32::MAX);

const LAST_BLOCK: AttentionWindow = AttentionWindow::LastBlocks(1);

/// The components that a rank has named, besides full attention.
#[derive(Debug, Default)]
pub(super) struct ComponentGroups {
    swa: Option<SecondaryGroup>,
    mamba: Option<SecondaryGroup>,
    /// Whether the size of the sliding window is unknown.
    pub(super) has_unknown_window: bool,
}

impl ComponentGroups {
    /// Groups of the components that the rank has named, with whether a store names them.
    pub(super) fn named(
        &mut self,
        stored: Components,
        group: CacheGroup<'_>,
        block_size: BlockSize,
    ) -> Vec<(SecondaryGroup, bool)> {
        if stored.swa && self.swa.is_none() {
            // Without the window's size, the engine needs at least the last block.
            let window = group.sliding_window.map(|tokens| AttentionWindow::sliding_window(tokens, block_size));
            self.has_unknown_window = window.is_none();
            self.swa = Some(component(SWA, window.unwrap_or(LAST_BLOCK)));
        }
        if stored.mamba {
            self.mamba = Some(component(MAMBA, LAST_BLOCK));
        }
        let known = [(self.swa, stored.swa), (self.mamba, stored.mamba)];
        known.into_iter().filter_map(|(group, is_held)| Some((group?, is_held))).collect()
    }

    /// Imports a group of another translator of the same rank. Returns whether it is a component's.
    pub(super) fn import(&mut self, group: SecondaryGroup) -> bool {
        match group.id {
            SWA => {
                // A window of one block is the one of an unknown size.
                self.has_unknown_window = group.window == LAST_BLOCK;
                self.swa = Some(group);
            }
            MAMBA => self.mamba = Some(group),
            _ => return false,
        }
        true
    }

    /// Groups of the components that the rank has named.
    pub(super) fn groups(&self) -> impl Iterator<Item = SecondaryGroup> + use<> {
        [self.swa, self.mamba].into_iter().flatten()
    }
}

/// The group of a component, whose blocks are those of full attention.
const fn component(id: GroupId, window: AttentionWindow) -> SecondaryGroup {
    SecondaryGroup { id, window, size: GroupBlockSize::REGISTERED }
}
