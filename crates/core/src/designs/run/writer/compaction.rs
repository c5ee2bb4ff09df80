//! A smaller copy of an index, made a part at a time beside it.
//!
//! Ranks are copied one after the other. What a rank holds is all that counts of its past, so a rank that has been copied,
//! or was not there, goes on by having its events applied to the copy as well; events of the rank that is being copied wait
//! until it is. The copy takes the place of the index when all ranks are in it.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::Writer;
use super::names::LINE_NAMES;
use crate::designs::run::RunLimits;
use crate::designs::run::published::Published;
use crate::{BlockEvent, WorkerRank, stored_events};

/// By how much the versions of a copy's table of ranks are ahead, so that none of them is one of the index as well.
const VERSIONS_AHEAD: u64 = 1 << 32;

/// A copy that is being made.
#[derive(Debug)]
pub(in crate::designs::run) struct Compaction {
    published: Arc<Published>,
    copy: Writer,
    /// Ranks that are not copied yet.
    outside: FxHashSet<WorkerRank>,
    /// The rank that is being copied, and the events that bring the copy up to what it holds.
    current: Option<(WorkerRank, VecDeque<BlockEvent>)>,
}

impl Compaction {
    /// A copy of nothing yet.
    pub(in crate::designs::run) fn new(index: &Writer) -> Self {
        let version = index.published.ranks.next_version() + VERSIONS_AHEAD;
        let published = Arc::new(Published::new(version, index.published.edges.key()));
        let unlimited =
            RunLimits { waiting_blocks_max: usize::MAX, removed_blocks_max: usize::MAX, twins_max: usize::MAX };
        let copy = Writer::new(Arc::clone(&published), unlimited);
        let outside = index.ranks.iter().map(|(_, state)| state.rank).collect();
        Self { published, copy, outside, current: None }
    }

    /// An event was applied to the index.
    pub(in crate::designs::run) fn follow(&mut self, rank: WorkerRank, event: &BlockEvent) {
        match &mut self.current {
            Some((current, events)) if *current == rank => events.push_back(event.clone()),
            _ if self.outside.contains(&rank) => {}
            _ => drop(self.copy.apply(rank, event)),
        }
    }

    /// Copies about this many blocks, of ranks that hold no more than `rank_blocks_max`: what a rank holds is listed at once.
    /// Says whether the copy is complete.
    pub(in crate::designs::run) fn go_on(&mut self, index: &Writer, blocks: usize, rank_blocks_max: usize) -> bool {
        let mut left = blocks;
        while left > 0 {
            if let Some((rank, events)) = &mut self.current {
                let Some(event) = next_part(events, left) else {
                    self.current = None;
                    continue;
                };
                self.copy.apply(*rank, &event);
                left = left.saturating_sub(blocks_of(&event).max(1));
                index.steps.take(blocks_of(&event));
                continue;
            }
            // Its list of runs may be longer than what it holds.
            let to_list = |rank| {
                let state = index.ranks.slot(rank).map(|slot| index.ranks.get(slot));
                state.map_or(0, |state| state.size.blocks.max(state.runs.len()))
            };
            let Some(&rank) = self.outside.iter().next() else { return true };
            if to_list(rank) > rank_blocks_max {
                return false;
            }
            index.steps.take(to_list(rank).div_ceil(LINE_NAMES));
            left = left.saturating_sub(to_list(rank));
            self.outside.remove(&rank);
            let events = index.ranks.slot(rank).map(|slot| stored_events(index.held_by(slot)));
            self.current = Some((rank, events.unwrap_or_default().into()));
        }
        false
    }

    /// The complete copy, in place of the index.
    pub(in crate::designs::run) fn finish(self, index: &Writer) -> (Arc<Published>, Writer) {
        (self.published, Writer { limits: index.limits, steps: index.steps.clone(), ..self.copy })
    }
}

/// The next event, or as much of a store as has this many blocks.
fn next_part(events: &mut VecDeque<BlockEvent>, blocks_max: usize) -> Option<BlockEvent> {
    let mut event = events.pop_front()?;
    if let BlockEvent::Stored { tier, blocks, copies, .. } = &mut event
        && blocks.len() > blocks_max
    {
        let rest = blocks.split_off(blocks_max);
        let parent = blocks.last().map(|block| block.sequence);
        events.push_front(BlockEvent::Stored { tier: *tier, parent, blocks: rest, copies: *copies });
    }
    Some(event)
}

fn blocks_of(event: &BlockEvent) -> usize {
    match event {
        BlockEvent::Stored { blocks, .. } => blocks.len(),
        BlockEvent::Copied { blocks, .. } | BlockEvent::Removed { blocks, .. } => blocks.len(),
        BlockEvent::Cleared => 0,
    }
}
