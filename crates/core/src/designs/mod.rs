//! The index designs, one file or folder each.

mod radix_tree;

pub use radix_tree::{RadixTree, RadixTreeLimits};
