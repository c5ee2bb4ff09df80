//! State that all instances of an index modify.

use flash_indexer_core::TokenWindows;
use flash_indexer_core::groups::GroupedIndex;
use flash_indexer_core::hashing::BlockSize;

use crate::listed::ListedRanks;

/// Limit of the ranks of an index.
pub const RANKS_MAX: usize = 1 << 16;

/// State that all instances change.
pub(crate) struct IndexState {
    pub(crate) block_size: BlockSize,
    pub(crate) index: GroupedIndex,
    pub(crate) listed: ListedRanks,
    pub(crate) windows: TokenWindows,
}
