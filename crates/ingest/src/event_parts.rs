//! Division of large events: a writer applies a bounded number of blocks at a time.

use flash_indexer_core::BlockEvent;
use flash_indexer_core::groups::{GroupChange, GroupEvent, RankEvent};

/// Blocks of one change of an index. An event with more is divided into several changes.
pub(super) const EVENT_BLOCKS_MAX: usize = 4_096;

/// Blocks that an event names.
pub(super) fn block_count(event: &RankEvent) -> usize {
    match event {
        RankEvent::Primary(BlockEvent::Stored { blocks, .. }) => blocks.len(),
        RankEvent::Primary(BlockEvent::Copied { blocks, .. } | BlockEvent::Removed { blocks, .. }) => blocks.len(),
        RankEvent::Primary(BlockEvent::Cleared) | RankEvent::ClearedScope(_) => 0,
        RankEvent::Secondary(change) => match &change.event {
            GroupEvent::Stored { blocks, .. } | GroupEvent::Removed { blocks, .. } => blocks.len(),
            GroupEvent::Linked(links) => links.len(),
        },
    }
}

/// Passes on events of at most [`EVENT_BLOCKS_MAX`] blocks that together have the effect of this one, in order. Copies the
/// event's blocks if there are more.
pub(super) fn divide(event: RankEvent, mut push: impl FnMut(RankEvent)) {
    if block_count(&event) <= EVENT_BLOCKS_MAX {
        return push(event);
    }
    match event {
        RankEvent::Primary(event) => parts_of_primary(event).into_iter().map(RankEvent::Primary).for_each(push),
        RankEvent::ClearedScope(scope) => push(RankEvent::ClearedScope(scope)),
        RankEvent::Secondary(GroupChange { group, event }) => {
            let parts = parts_of_group(event).into_iter();
            parts.map(|event| RankEvent::Secondary(GroupChange { group, event })).for_each(push);
        }
    }
}

/// Copies of the blocks, at most [`EVENT_BLOCKS_MAX`] together.
fn parts<B: Clone>(blocks: &[B]) -> impl Iterator<Item = Vec<B>> {
    blocks.chunks(EVENT_BLOCKS_MAX).map(<[B]>::to_vec)
}

fn parts_of_primary(event: BlockEvent) -> Vec<BlockEvent> {
    match event {
        BlockEvent::Stored { tier, mut parent, blocks, copies } => {
            let stored = parts(&blocks).map(|blocks| {
                let last = blocks.last().map(|last| last.sequence);
                BlockEvent::Stored { tier, parent: std::mem::replace(&mut parent, last), blocks, copies }
            });
            stored.collect()
        }
        BlockEvent::Copied { tier, blocks } => {
            parts(&blocks).map(|blocks| BlockEvent::Copied { tier, blocks }).collect()
        }
        BlockEvent::Removed { tier, blocks, copies } => {
            parts(&blocks).map(|blocks| BlockEvent::Removed { tier, blocks, copies }).collect()
        }
        BlockEvent::Cleared => vec![BlockEvent::Cleared],
    }
}

fn parts_of_group(event: GroupEvent) -> Vec<GroupEvent> {
    match event {
        GroupEvent::Stored { tier, blocks, copies } => {
            parts(&blocks).map(|blocks| GroupEvent::Stored { tier, blocks, copies }).collect()
        }
        GroupEvent::Removed { tier, blocks, copies } => {
            parts(&blocks).map(|blocks| GroupEvent::Removed { tier, blocks, copies }).collect()
        }
        GroupEvent::Linked(links) => parts(&links).map(GroupEvent::Linked).collect(),
    }
}
