//! A query's walk down the tree, one node lock at a time.

use std::sync::Arc;

use flash_indexer_core::LocalHash;

use super::node::Node;
use crate::active_ranks::{ActiveRanks, Depths};

/// A node that the query has reached, and the ranks that match up to its parent.
struct Branch {
    node: Arc<Node>,
    depth: usize,
    active: ActiveRanks,
}

/// Records the deepest match of every rank that holds the first block.
pub(super) fn find(root: &Node, query: &[LocalHash], depths: &mut Depths) {
    let Some(&first) = query.first() else { return };
    let starts: Vec<Arc<Node>> = root
        .read(|state| state.children.first(first).into_iter().chain(state.children.twins(first)).cloned().collect());
    let start = |node: Arc<Node>| {
        let active = node.read(|state| ActiveRanks::holding(&state.holders));
        Branch { node, depth: 0, active }
    };
    let mut branches: Vec<Branch> = starts.into_iter().map(start).collect();
    while let Some(branch) = branches.pop() {
        branch.follow(query, &mut branches, depths);
    }
}

impl Branch {
    /// Walks down while a rank matches. Each twin on the way becomes a branch.
    fn follow(self, query: &[LocalHash], branches: &mut Vec<Self>, depths: &mut Depths) {
        let Self { mut node, mut depth, mut active } = self;
        loop {
            let next = node.read(|state| {
                if let Some(dropped) = active.split_off_dropped(&state.holders) {
                    depths.record(&dropped, depth);
                }
                if active.is_empty() {
                    return None;
                }
                depth += 1;
                let &local = query.get(depth)?;
                let twins = state.children.twins(local).cloned();
                branches.extend(twins.map(|twin| Self { node: twin, depth, active: active.clone() }));
                state.children.first(local).cloned()
            });
            let Some(next) = next else { break };
            node = next;
        }
        depths.record(&active, depth);
    }
}
