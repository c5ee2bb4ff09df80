//! The index designs, one file or folder each, and their names.

mod concurrent_radix_tree;
mod inverted;
mod nested_map;
mod positional;
mod radix_tree;
mod run;

mod holders;
mod matching;
mod naming;
mod rank_blocks;
mod rank_set;
mod rank_slots;
mod rank_table;

use std::fmt;
use std::str::FromStr;

pub use concurrent_radix_tree::ConcurrentRadixTree;
pub use inverted::Inverted;
pub use naming::NamingLimits;
pub(crate) use naming::{Lookup, Placement, RankWriter, Tiers};
pub use nested_map::NestedMap;
pub use positional::{LostRankSearch, Positional, PositionalOptions};
pub use radix_tree::{CountedMatches, RadixTree, UseWindow};
pub use run::{
    INDEX_BYTES_MIN, MemoryTooSmall, OnEvicted, RunHolder, RunHolders, RunIndex, RunLimits, RunMatches, RunMemory,
};

use crate::{Actor, Locked, SharedIndex};

/// An index design, as it is chosen by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Design {
    /// For each rank a map by content, behind a read-write lock. Claims too much where content repeats.
    NestedMap,
    /// The nested map, owned by a thread that serves one request after the other.
    Actor,
    /// One map by content for all ranks, behind a read-write lock. Claims what the nested map claims.
    Inverted,
    /// A tree of blocks with their holders, behind a read-write lock.
    RadixTree,
    /// A tree of blocks with a lock in each.
    ConcurrentRadixTree,
    /// Blocks by position, searched in jumps; what a jump has lost is looked for one by one.
    Positional,
    /// Blocks by position, searched in jumps; what a jump has lost is looked for by halves.
    PositionalBinary,
    /// Runs of blocks with the holders of each; readers take no lock.
    Run,
}

impl Design {
    /// Every design.
    pub const ALL: [Self; 8] = [
        Self::NestedMap,
        Self::Actor,
        Self::Inverted,
        Self::RadixTree,
        Self::ConcurrentRadixTree,
        Self::Positional,
        Self::PositionalBinary,
        Self::Run,
    ];

    /// The design that is used where none is chosen.
    pub const DEFAULT: Self = Self::Run;

    /// The name that chooses the design.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NestedMap => "nested-map",
            Self::Actor => "actor",
            Self::Inverted => "inverted",
            Self::RadixTree => "radix-tree",
            Self::ConcurrentRadixTree => "concurrent-radix-tree",
            Self::Positional => "positional",
            Self::PositionalBinary => "positional-binary",
            Self::Run => "run",
        }
    }

    /// An empty index of the design. [`Design::Actor`] starts a thread.
    #[must_use]
    pub fn build(self) -> Box<dyn SharedIndex> {
        match self {
            Self::NestedMap => Box::new(Locked::<NestedMap>::default()),
            Self::Actor => Box::new(Actor::<NestedMap>::default()),
            Self::Inverted => Box::new(Locked::<Inverted>::default()),
            Self::RadixTree => Box::new(Locked::<RadixTree>::default()),
            Self::ConcurrentRadixTree => Box::new(ConcurrentRadixTree::default()),
            Self::Positional => Box::new(Positional::default()),
            Self::PositionalBinary => Box::new(Positional::new(PositionalOptions {
                lost_rank_search: LostRankSearch::Binary,
                ..PositionalOptions::default()
            })),
            Self::Run => Box::<RunIndex>::default(),
        }
    }
}

/// No such bounded index can be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BoundedError {
    /// The design takes whatever it needs.
    #[error("index design {0} has no bound of memory: choose {default}", default = Design::DEFAULT)]
    Design(Design),
    /// The bound is too low.
    #[error(transparent)]
    TooSmall(#[from] MemoryTooSmall),
}

impl Design {
    /// An empty index of the design that takes no more than `bytes_max` bytes ([`RunIndex::bounded`]).
    ///
    /// # Errors
    ///
    /// When the design cannot be bounded, or not so low.
    pub fn build_bounded(self, bytes_max: usize) -> Result<Box<dyn SharedIndex>, BoundedError> {
        match self {
            Self::Run => Ok(Box::new(RunIndex::bounded(RunLimits::default(), bytes_max)?)),
            other => Err(BoundedError::Design(other)),
        }
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// A name that no design has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no index design is called {0:?}: choose one of {names}", names = Design::ALL.map(Design::as_str).join(", "))]
pub struct UnknownDesign(String);

impl FromStr for Design {
    type Err = UnknownDesign;

    fn from_str(name: &str) -> Result<Self, UnknownDesign> {
        let known = Self::ALL.into_iter().find(|design| design.as_str() == name);
        known.ok_or_else(|| UnknownDesign(name.to_owned()))
    }
}
