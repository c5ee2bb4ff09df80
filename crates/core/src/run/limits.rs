//! Limits of the state that an index keeps for a rank, and of the changes by one event.

/// Default of [`RunLimits::moved_blocks_max`].
pub(super) const MOVED_BLOCKS_MAX: usize = 4_096;

/// Limits of a [`RunIndex`](super::RunIndex).
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    /// Blocks of one rank that may wait for a parent. The index refuses and counts further ones.
    pub waiting_blocks_max: usize,
    /// Blocks that no rank holds but that the whole index keeps because held blocks follow them. Beyond this limit
    /// the index moves the followers to the waiting blocks until the missing block is stored again. That changes no
    /// answer.
    pub removed_blocks_max: usize,
    /// Twins of one block, and of all blocks of one run: blocks that one rank holds under several sequence hashes.
    /// The index refuses and counts further ones.
    pub twins_max: usize,
    /// Blocks of one rank that one event may move. An event moves blocks in three cases:
    ///
    /// * It redefines a sequence hash: the blocks below it move. Beyond the limit the index drops all blocks of the rank,
    ///   and counts them as refused.
    /// * The rank leaves its hash domain: its blocks move. Beyond the limit the rank stays in the domain, with a twin of the
    ///   block that has another sequence hash there.
    /// * It stores a block for which others waited: these move. Beyond the limit they move with later events.
    ///
    /// In the first two cases a rank may move this many blocks at once, and one more for each block that it stores.
    pub moved_blocks_max: usize,
}

impl RunLimits {
    /// No limits, for a copy of an index that obeys them.
    pub(super) const UNLIMITED: Self = Self {
        waiting_blocks_max: usize::MAX,
        removed_blocks_max: usize::MAX,
        twins_max: usize::MAX,
        moved_blocks_max: usize::MAX,
    };
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            waiting_blocks_max: 1 << 20,
            removed_blocks_max: 1 << 20,
            twins_max: 64,
            moved_blocks_max: MOVED_BLOCKS_MAX,
        }
    }
}
