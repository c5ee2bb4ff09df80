//! How a query goes down the tree, one lock at a time.

use std::sync::Arc;

use flash_indexer_core::LocalHash;

use super::node::Node;
use crate::matching::{Depths, Matching};

/// A node that a query has reached, and the ranks that match as far as its parent.
struct Branch {
    node: Arc<Node>,
    depth: usize,
    matching: Matching,
}

/// Records the deepest matches of every rank.
pub(super) fn find(root: &Node, query: &[LocalHash], depths: &mut Depths) {
    let Some(&first) = query.first() else { return };
    let starts: Vec<Arc<Node>> = root
        .read(|state| state.children.first(first).into_iter().chain(state.children.twins(first)).cloned().collect());
    let start = |node: Arc<Node>| {
        let matching = node.read(|state| Matching::holding(&state.holders));
        Branch { node, depth: 0, matching }
    };
    let mut branches: Vec<Branch> = starts.into_iter().map(start).collect();
    while let Some(branch) = branches.pop() {
        branch.follow(query, &mut branches, depths);
    }
}

impl Branch {
    /// Walks down until no rank matches any more. Twins on the way become branches.
    fn follow(self, query: &[LocalHash], branches: &mut Vec<Self>, depths: &mut Depths) {
        let Self { mut node, mut depth, mut matching } = self;
        loop {
            let next = node.read(|state| {
                if let Some(lost) = matching.split_off_lost(&state.holders) {
                    depths.record(&lost, depth);
                }
                if matching.is_empty() {
                    return None;
                }
                depth += 1;
                let &local = query.get(depth)?;
                let twins = state.children.twins(local).cloned();
                branches.extend(twins.map(|twin| Self { node: twin, depth, matching: matching.clone() }));
                state.children.first(local).cloned()
            });
            let Some(next) = next else { break };
            node = next;
        }
        depths.record(&matching, depth);
    }
}
