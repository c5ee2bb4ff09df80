//! Block sizes of cache groups.

use std::num::NonZeroU32;

use crate::hashing::BlockSize;

/// Block size of a cache group, as a multiple of the registered block size: the number of blocks of the index that one block
/// of the group spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupBlockSize(NonZeroU32);

impl GroupBlockSize {
    /// The registered block size.
    pub const REGISTERED: Self = Self(NonZeroU32::MIN);

    /// The size of blocks of `tokens` tokens; none if that is no multiple of the registered size.
    #[must_use]
    pub const fn of(tokens: u32, registered: BlockSize) -> Option<Self> {
        match NonZeroU32::new(tokens / registered.tokens()) {
            Some(blocks) if tokens.is_multiple_of(registered.tokens()) => Some(Self(blocks)),
            _ => None,
        }
    }

    /// Blocks of the index that a block of the group spans.
    #[must_use]
    pub const fn blocks(self) -> u32 {
        self.0.get()
    }

    /// Tokens of a block of the group.
    #[must_use]
    pub const fn tokens(self, registered: BlockSize) -> u32 {
        registered.tokens().saturating_mul(self.0.get())
    }
}
