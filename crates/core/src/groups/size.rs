//! Block sizes of cache groups.

use std::num::NonZeroU32;

use crate::hashing::BlockSize;

/// Block size of a cache group: a multiple of the registered block size, or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupBlockSize {
    /// Blocks of the index that one block of the group spans; one for smaller blocks.
    span: NonZeroU32,
    /// Blocks of the group in one block of the index; one for larger blocks.
    parts: NonZeroU32,
}

impl GroupBlockSize {
    /// The registered block size.
    pub const REGISTERED: Self = Self { span: NonZeroU32::MIN, parts: NonZeroU32::MIN };

    /// The size of blocks of `tokens` tokens; none if neither that nor the registered size is a multiple of the other.
    #[must_use]
    pub const fn of(tokens: u32, registered: BlockSize) -> Option<Self> {
        let registered = registered.tokens();
        if tokens == 0 {
            return None;
        }
        match (NonZeroU32::new(tokens / registered), NonZeroU32::new(registered / tokens)) {
            (Some(span), _) if tokens.is_multiple_of(registered) => Some(Self { span, parts: NonZeroU32::MIN }),
            (_, Some(parts)) if registered.is_multiple_of(tokens) => Some(Self { span: NonZeroU32::MIN, parts }),
            _ => None,
        }
    }

    /// Blocks of the index that a block of the group spans; one for blocks of the registered size and smaller ones.
    #[must_use]
    pub const fn span(self) -> u32 {
        self.span.get()
    }

    /// Blocks of the group in a block of the index; one for blocks of the registered size and larger ones.
    #[must_use]
    pub const fn parts(self) -> u32 {
        self.parts.get()
    }

    /// Whether the blocks are smaller than the registered ones.
    #[must_use]
    pub const fn is_finer(self) -> bool {
        self.parts() > 1
    }

    /// Tokens of a block of the group.
    #[must_use]
    pub const fn tokens(self, registered: BlockSize) -> u32 {
        registered.tokens().saturating_mul(self.span()) / self.parts()
    }

    /// The same as a block size.
    #[must_use]
    pub fn block_size(self, registered: BlockSize) -> BlockSize {
        // None for a size of another registered size.
        BlockSize::new(self.tokens(registered)).unwrap_or(registered)
    }
}
