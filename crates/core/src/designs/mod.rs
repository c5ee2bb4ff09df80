//! The index designs, one file or folder each, and their names.

mod naming;
mod radix_tree;
mod rank_slots;

use std::fmt;
use std::str::FromStr;

pub use naming::NamingLimits;
pub use radix_tree::RadixTree;

use crate::{Locked, SharedIndex};

/// An index design, as it is chosen by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Design {
    /// A tree of blocks with their holders, behind a read-write lock.
    RadixTree,
}

impl Design {
    /// Every design.
    pub const ALL: [Self; 1] = [Self::RadixTree];

    /// The name that chooses the design.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RadixTree => "radix-tree",
        }
    }

    /// An empty index of the design.
    #[must_use]
    pub fn build(self) -> Box<dyn SharedIndex> {
        match self {
            Self::RadixTree => Box::new(Locked::<RadixTree>::default()),
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
