//! How often blocks were asked for lately.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::Duration;

use super::nodes::{NodeId, Nodes};
use crate::{LocalHash, MatchScores};

/// Which uses of a block count as recent.
#[derive(Debug, Clone, Copy)]
pub struct UseWindow {
    /// Uses longer ago than this are forgotten.
    pub length: Duration,
    /// Uses of one block that are remembered, the latest ones: a count never says more.
    pub uses_max: NonZeroUsize,
}

/// The answer to a query that counts as a use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountedMatches {
    /// What each rank holds of the query.
    pub scores: MatchScores,
    /// For each leading block that any rank holds, how many queries have matched it within the
    /// window before this one.
    pub recent_uses: Vec<u32>,
}

/// When a block was used, oldest first. Nothing is allocated before the first use.
#[derive(Debug, Default)]
#[expect(clippy::box_collection, reason = "most nodes have no uses, and then it is 8 bytes instead of 32")]
pub(super) struct RecentUses(Option<Box<VecDeque<Duration>>>);

impl RecentUses {
    /// Notes a use and returns how many are remembered from before.
    pub(super) fn count(&mut self, now: Duration, window: UseWindow) -> u32 {
        let uses = self.0.get_or_insert_default();
        while uses.front().is_some_and(|&used| now.saturating_sub(used) > window.length) {
            uses.pop_front();
        }
        let before = uses.len().min(window.uses_max.get());
        uses.push_back(now);
        while uses.len() > window.uses_max.get() {
            uses.pop_front();
        }
        u32::try_from(before).unwrap_or(u32::MAX)
    }
}

/// Notes a use of every block of `matched`, a prefix that the tree has. Where a prefix has twins, the
/// use counts for all of them, and the one that remembers most is believed.
pub(super) fn count(nodes: &mut Nodes, matched: &[LocalHash], now: Duration, window: UseWindow) -> Vec<u32> {
    let mut reached = vec![NodeId::ROOT];
    let counted = matched.iter().map(|&local| {
        let first_of = |&node| nodes.child(node, local);
        reached = reached.iter().flat_map(|node| nodes.with_twins(first_of(node))).collect();
        reached.iter().map(|&node| nodes.count_use(node, now, window)).max().unwrap_or(0)
    });
    counted.collect()
}
