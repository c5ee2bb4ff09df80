//! The index designs by their command-line names.

use flash_indexer_core::run::{MemoryTooSmall, RunIndex, RunLimits};
use flash_indexer_core::{LockedIndex, SharedIndex};

use crate::{
    Actor, ConcurrentRadixTree, DroppedRankSearch, Inverted, NestedMap, Positional, PositionalOptions, RadixTree,
};

flash_indexer_core::named_enum! {
    /// An index design, selected by its name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Design {
        /// One map by local hash for each rank, behind a read-write lock. Inexact where a rank holds one local hash under several
        /// prefixes: [`crate::NestedMap`].
        NestedMap = "nested-map",
        /// The nested map, owned by a thread that serves one request after the other. Inexact as the nested map is.
        Actor = "actor",
        /// One map by local hash for all ranks, behind a read-write lock. Gives the answers of the nested map.
        Inverted = "inverted",
        /// A tree of blocks with their holders, behind a read-write lock. Exact.
        RadixTree = "radix-tree",
        /// A tree of blocks with a lock in each node. Exact.
        ConcurrentRadixTree = "concurrent-radix-tree",
        /// Blocks by position, searched in jumps; a linear scan finds where ranks dropped out. Exact.
        Positional = "positional",
        /// Blocks by position, searched in jumps; a binary search finds where ranks dropped out. Exact.
        PositionalBinary = "positional-binary",
        /// The run index of `flash-indexer-core`: runs of blocks with the holders of each; readers take no lock. Exact.
        Run = "run",
    }
}

impl Design {
    /// The design of the service, and of commands without an explicit choice.
    pub const DEFAULT: Self = Self::Run;

    /// Builds an empty index of the design. [`Design::Actor`] starts a thread, which ends when the index is dropped.
    #[must_use]
    pub fn build(self) -> Box<dyn SharedIndex> {
        match self {
            Self::NestedMap => Box::new(LockedIndex::<NestedMap>::default()),
            Self::Actor => Box::new(Actor::<NestedMap>::default()),
            Self::Inverted => Box::new(LockedIndex::<Inverted>::default()),
            Self::RadixTree => Box::new(LockedIndex::<RadixTree>::default()),
            Self::ConcurrentRadixTree => Box::new(ConcurrentRadixTree::default()),
            Self::Positional => Box::new(Positional::default()),
            Self::PositionalBinary => Box::new(Positional::new(PositionalOptions {
                dropped_rank_search: DroppedRankSearch::Binary,
                ..PositionalOptions::default()
            })),
            Self::Run => Box::<RunIndex>::default(),
        }
    }

    /// Builds an empty index of the design that takes at most `bytes_max` bytes ([`RunIndex::bounded`]).
    ///
    /// # Errors
    ///
    /// If the design does not support a memory limit, or if `bytes_max` is below the design's minimum.
    pub fn build_bounded(self, bytes_max: usize) -> Result<Box<dyn SharedIndex>, BoundedError> {
        match self {
            Self::Run => Ok(Box::new(RunIndex::bounded(RunLimits::default(), bytes_max)?)),
            other => Err(BoundedError::Unsupported(other)),
        }
    }
}

/// Why a design cannot be built within a memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BoundedError {
    /// The design does not support a memory limit.
    #[error("index design {} does not support a memory limit; choose {}", .0.as_str(), Design::DEFAULT.as_str())]
    Unsupported(Design),
    /// The limit is below the minimum.
    #[error(transparent)]
    TooSmall(#[from] MemoryTooSmall),
}
